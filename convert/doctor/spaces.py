"""Checks of canonical spaces: the columns ``action_eef_delta``, ``state_eef`` and their like make sense together.

Dimensions that the registry lists under ``unknown_units`` are not judged, nor is the scale of ``oxe``, which equals its
original value for value.
"""

from __future__ import annotations

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

    def describe(told: str, values: np.ndarray, step: int) -> str:
        return f"{told} is {values[step]:.4g}, expected 0 (closed) to 1 (open)"

    for column, name, values, is_known in _dimensions(split):
        if name != "gripper":
            continue
        told, present = f"{column} gripper", values[np.isfinite(values)]
        if len(present) >= rules.LEAST_STEPS and present.min() == present.max():
            text = f"{told} is {present[0]:.4g} at all {len(present):,} steps"
            notes.add("space_gripper_still", split.name, text)
        if is_known and not column.endswith("_oxe"):
            beyond = (values < -rules.GRIPPER_TOLERANCE) | (values > 1 + rules.GRIPPER_TOLERANCE)
            split.note_steps("space_gripper_range", beyond, partial(describe, told, values), notes)


def check_space_inversion(split: OpenSplit, notes: Notes) -> None:
    """Note grippers of the action that open where those of the state close."""
    known = {(column, name): values for column, name, values, is_known in _dimensions(split) if is_known}
    for action, state in _PAIRS:
        if (action, "gripper") not in known or (state, "gripper") not in known:
            continue
        commanded, measured = known[action, "gripper"], known[state, "gripper"]
        present = np.isfinite(commanded) & np.isfinite(measured)
        found = _correlation(commanded[present], measured[present])
        if present.sum() >= rules.LEAST_GRIPPER_STEPS and found < -rules.RELATED:
            where = int(np.argmax(np.where(present, np.abs(commanded - measured), -1)))
            text = f"{action} gripper is {commanded[where]:.3g} where {state} gripper is {measured[where]:.3g}; "
            _note_step(split, "space_gripper_inverted", where, f"{text}correlation {found:.2f}", notes)


def check_space_deltas(split: OpenSplit, notes: Notes) -> None:
    """Note dimensions of ``eef_delta`` that do not fit the poses of ``state_eef``.

    The change of the poses and the deltas are added up over ten steps each, then the factor between the two is found
    by least squares.
    """
    dimensions = {(column, name): values[:_MOST_STEPS] for column, name, values, known in _dimensions(split) if known}
    names = [name for column, name in dimensions if column == "state_eef" and ("action_eef_delta", name) in dimensions]
    steps = split.column("steps", "step")[:_MOST_STEPS]
    rows = Rows.of(split.column("steps", "episode")[:_MOST_STEPS], None)
    starts = np.flatnonzero(steps % _WINDOW == 0)
    changes = {name: dimensions["state_eef", name][:, None] for name in names if name not in (*_TURNS, "gripper")}
    changes = {name: OPERATIONS["reached"](values, rows, ())[:, 0] for name, values in changes.items()}
    if set(_TURNS) <= set(names):
        poses = np.stack([dimensions["state_eef", name] for name in _TURNS], axis=1)
        changes |= dict(zip(_TURNS, OPERATIONS["turned"](poses, rows, ()).T, strict=True))
    for name, change in changes.items():
        delta = dimensions["action_eef_delta", name]
        present = np.isfinite(change) & np.isfinite(delta)
        if present.sum() < rules.LEAST_STEPS:
            continue
        moved, said = (
            np.add.reduceat(np.where(present, values, 0), starts, dtype=np.float64) for values in (change, delta)
        )
        relation, power = _correlation(said, moved, centred=False), float(moved @ moved)
        if power == 0 or not said.any():
            continue
        told = f"action_eef_delta {name}"
        where = int(starts[np.abs(said).argmax()])
        factor = float(said @ moved) / power
        if relation < rules.RELATED:
            text = f"{told} does not follow the poses of state_eef: correlation {relation:.2f} over {_WINDOW} steps"
            _note_step(split, "space_delta_unrelated", where, text, notes)
        elif not 1 / rules.UNIT_FACTOR < factor < rules.UNIT_FACTOR:
            size, ratio = ("large", factor) if factor > 1 else ("small", 1 / factor)
            text = f"{told} is too {size} for the poses of state_eef, by a factor of about {float(f'{ratio:.2g}'):g}"
            _note_step(split, "space_delta_factor", where, text, notes)


def check_space_units(split: OpenSplit, notes: Notes) -> None:
    """Note episodes with values that no robot has in metres and radians."""

    def describe(told: str, values: np.ndarray, limit: float, step: int) -> str:
        return f"{told} is {values[step]:.4g}, expected at most {limit:.4g} either way"

    for column, name, values, is_known in _dimensions(split):
        limits = rules.SPACE_LIMITS.get(column)
        if limits is not None and is_known and name != "gripper":
            limit = limits[name in _TURNS]
            beyond = np.abs(values) > limit
            split.note_steps("space_units", beyond, partial(describe, f"{column} {name}", values, limit), notes)


def _dimensions(split: OpenSplit) -> Iterator[tuple[str, str, np.ndarray, bool]]:
    """Yield column, name, values [steps] and whether the unit is known, for each number that has a source."""
    if not len(split.tables["steps"]):
        return
    unknown = {
        f"{each}_{space}": mapping.unknown_units for space, mapping in split.vectors.spaces.items() for each in VECTORS
    }
    for column, vector in derived_vectors(split.vectors).items():
        if not isinstance(vector, MappedVector):
            continue
        stored = [term.path is not None for term in vector.terms for _ in range(term.size)]
        for dim, name in enumerate(vector.names):
            if stored[dim]:
                yield column, name, split.column("steps", column)[:, dim], name not in unknown[column]


def _correlation(one: np.ndarray, other: np.ndarray, *, centred: bool = True) -> float:
    """Return the correlation, 0 if one of the two is constant."""
    if not len(one):
        return 0.0
    first, second = (values - (values.mean() if centred else 0) for values in (one, other))
    size = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / size if size > 0 else 0.0


def _note_step(split: OpenSplit, rule: str, row: int, text: str, notes: Notes) -> None:
    episode, step = split.value("steps", "episode", row), split.value("steps", "step", row)
    notes.add(rule, split.name, partial(split.example, episode, text, step=step))


SPACE_CHECKS = (check_space_grippers, check_space_inversion, check_space_deltas, check_space_units)
