"""Checks of canonical spaces: the columns ``action_eef_delta``, ``state_eef`` and their like make sense together.

Dimensions that the registry lists under ``unknown_units`` are not judged, nor is the scale of ``oxe``, which equals its
original value for value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np

from convert import rules
from convert.doctor.split import OpenSplit
from convert.findings import Notes
from convert.index.operations import OPERATIONS, Rows
from convert.registry.dataset import derived_vectors
from convert.registry.space import MappedVector
from stream.format.names import VECTORS

_PAIRS = (("action_eef_delta", "state_eef"), ("action_joint", "state_joint"))
_TURNS = ("roll", "pitch", "yaw")
_WINDOW = 10
"""Steps that are added up, because a robot follows its command a step or two later."""
_MOST_STEPS = 100_000
"""Steps whose deltas are compared with poses."""


def check_space_grippers(split: OpenSplit, notes: Notes) -> None:
    """Note grippers that never move, and episodes with a gripper outside of [0, 1]."""

    def describe(description: str, values: np.ndarray, step: int) -> str:
        return f"{description} is {values[step]:.4g}, expected 0 (closed) to 1 (open)"

    for column, dimension_name, values, is_known in _dimensions(split):
        if dimension_name != "gripper":
            continue
        description, finite_values = f"{column} gripper", values[np.isfinite(values)]
        if len(finite_values) >= rules.LEAST_STEPS and finite_values.min() == finite_values.max():
            sentence = f"{description} is {finite_values[0]:.4g} at all {len(finite_values):,} steps"
            notes.add("space_gripper_still", split.name, sentence)
        if is_known and not column.endswith("_oxe"):
            is_beyond = (values < -rules.GRIPPER_TOLERANCE) | (values > 1 + rules.GRIPPER_TOLERANCE)
            split.note_steps("space_gripper_range", is_beyond, partial(describe, description, values), notes)


def check_space_inversion(split: OpenSplit, notes: Notes) -> None:
    """Note grippers of the action that open where those of the state close."""
    known_values = {(column, name): values for column, name, values, is_known in _dimensions(split) if is_known}
    for action, state in _PAIRS:
        if (action, "gripper") not in known_values or (state, "gripper") not in known_values:
            continue
        commanded, measured = known_values[action, "gripper"], known_values[state, "gripper"]
        is_finite = np.isfinite(commanded) & np.isfinite(measured)
        correlation = _correlation(commanded[is_finite], measured[is_finite])
        if is_finite.sum() >= rules.LEAST_GRIPPER_STEPS and correlation < -rules.RELATED:
            step = int(np.argmax(np.where(is_finite, np.abs(commanded - measured), -1)))
            sentence = f"{action} gripper is {commanded[step]:.3g} where {state} gripper is {measured[step]:.3g}"
            _note_step(split, "space_gripper_inverted", step, f"{sentence}; correlation {correlation:.2f}", notes)


def check_space_deltas(split: OpenSplit, notes: Notes) -> None:
    """Note dimensions of ``eef_delta`` that do not fit the poses of ``state_eef``.

    The change of the poses and the deltas are added up over ten steps each, then the factor between the two is found
    by least squares.
    """
    dimensions = {
        (column, name): values[:_MOST_STEPS] for column, name, values, is_known in _dimensions(split) if is_known
    }
    dimension_names = [
        name for column, name in dimensions if column == "state_eef" and ("action_eef_delta", name) in dimensions
    ]
    steps = split.column("steps", "step")[:_MOST_STEPS]
    rows = Rows.of(split.column("steps", "episode")[:_MOST_STEPS], None)
    starts = np.flatnonzero(steps % _WINDOW == 0)
    changes = {
        name: OPERATIONS["reached"](dimensions["state_eef", name][:, None], rows, ())[:, 0]
        for name in dimension_names
        if name not in (*_TURNS, "gripper")
    }
    if set(_TURNS) <= set(dimension_names):
        poses = np.stack([dimensions["state_eef", dimension_name] for dimension_name in _TURNS], axis=1)
        changes |= dict(zip(_TURNS, OPERATIONS["turned"](poses, rows, ()).T, strict=True))
    for dimension_name, change in changes.items():
        deltas = dimensions["action_eef_delta", dimension_name]
        is_finite = np.isfinite(change) & np.isfinite(deltas)
        if is_finite.sum() < rules.LEAST_STEPS:
            continue
        moved_sums, commanded_sums = (
            np.add.reduceat(np.where(is_finite, values, 0), starts, dtype=np.float64) for values in (change, deltas)
        )
        relation, moved_power = _correlation(commanded_sums, moved_sums, centred=False), float(moved_sums @ moved_sums)
        if moved_power == 0 or not commanded_sums.any():
            continue
        description = f"action_eef_delta {dimension_name}"
        largest_step = int(starts[np.abs(commanded_sums).argmax()])
        factor = float(commanded_sums @ moved_sums) / moved_power
        if relation < rules.RELATED:
            sentence = f"{description} does not follow the poses of state_eef: correlation {relation:.2f}"
            _note_step(split, "space_delta_unrelated", largest_step, f"{sentence} over {_WINDOW} steps", notes)
        elif not 1 / rules.UNIT_FACTOR < factor < rules.UNIT_FACTOR:
            size, factor = ("large", factor) if factor > 1 else ("small", 1 / factor)
            sentence = f"{description} is too {size} for the poses of state_eef, by a factor of about"
            _note_step(split, "space_delta_factor", largest_step, f"{sentence} {float(f'{factor:.2g}'):g}", notes)


def check_space_units(split: OpenSplit, notes: Notes) -> None:
    """Note episodes with values that no robot has in metres and radians."""

    def describe(description: str, values: np.ndarray, largest_value: float, step: int) -> str:
        return f"{description} is {values[step]:.4g}, expected at most {largest_value:.4g} either way"

    for column, dimension_name, values, is_known in _dimensions(split):
        space_limits = rules.SPACE_LIMITS.get(column)
        if space_limits is not None and is_known and dimension_name != "gripper":
            largest_value = space_limits[dimension_name in _TURNS]
            describe_step = partial(describe, f"{column} {dimension_name}", values, largest_value)
            split.note_steps("space_units", np.abs(values) > largest_value, describe_step, notes)


def _dimensions(split: OpenSplit) -> Iterator[tuple[str, str, np.ndarray, bool]]:
    """Yield column, name, values [steps] and whether the unit is known, for each number that has a source."""
    if not len(split.tables["steps"]):
        return
    unknown = {
        f"{vector_name}_{name}": mapping.unknown_units
        for name, mapping in split.vectors.spaces.items()
        for vector_name in VECTORS
    }
    for column, vector in derived_vectors(split.vectors).items():
        if not isinstance(vector, MappedVector):
            continue
        has_source = [term.path is not None for term in vector.terms for _ in range(term.size)]
        for number, name in itertools.compress(enumerate(vector.names), has_source):
            yield column, name, split.column("steps", column)[:, number], name not in unknown[column]


def _correlation(first_values: np.ndarray, second_values: np.ndarray, *, centred: bool = True) -> float:
    """Return the correlation, 0 if one of the two is constant."""
    if not len(first_values):
        return 0.0
    first, second = (values - (values.mean() if centred else 0) for values in (first_values, second_values))
    norm = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / norm if norm > 0 else 0.0


def _note_step(split: OpenSplit, rule_name: str, step_row: int, sentence: str, notes: Notes) -> None:
    episode, step = split.value("steps", "episode", step_row), split.value("steps", "step", step_row)
    notes.add(rule_name, split.name, partial(split.example, episode, sentence, step=step))


SPACE_CHECKS = (check_space_grippers, check_space_inversion, check_space_deltas, check_space_units)
