"""Checks of files, actions, states and instructions.

A check is a function that notes what it finds in an open split, or in all splits of a dataset. To add one, put it into
``SPLIT_CHECKS`` or ``DATASET_CHECKS`` and its rules into ``convert.rules``. Checks of canonical spaces are in
``convert.doctor.spaces``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from convert import rules
from convert.doctor.frames import check_frames
from convert.doctor.spaces import SPACE_CHECKS
from convert.doctor.split import OpenSplit
from convert.findings import Example, Notes
from convert.index.statistics import differing_statistics, robust_scores, split_statistics
from convert.registry.dataset import Part, derived_vectors
from convert.report import fault
from stream.base.errors import FormatError
from stream.format.statistics import EXTREME_RANGES


def check_statistics(split: OpenSplit, notes: Notes) -> None:
    """Check the statistics in the manifest against the steps, and the range of each dimension."""
    if not len(split.tables["steps"]):
        return
    computed = split_statistics(split.folder, derived_vectors(split.vectors))
    for vector, text in differing_statistics(split.statistics, computed):
        notes.add("statistics_differ", split.name, f"{vector}: {text}")
    for vector, statistics in computed.items():
        for dim, (name, part) in enumerate(split.dimensions.get(vector, ())):
            figures = [getattr(statistics, key)[dim] for key in ("min", "q01", "q99", "max")]
            if None not in figures:
                count = statistics.count - statistics.nonfinite[dim]
                _check_range(split.name, f"{vector} {name}", part, figures, count, notes)


def _check_range(split: str, told: str, part: Part, figures: Sequence[float], count: int, notes: Notes) -> None:
    least, low, high, most = figures
    if high > low and max(most - high, low - least) / (high - low) > EXTREME_RANGES:
        text = f"{told} goes from {least:.4g} to {most:.4g}, 98 % of it from {low:.4g} to {high:.4g}"
        notes.add("extreme_values", split, text)
    if count < rules.LEAST_STEPS or part.kind == "flag":
        return
    if least == most:
        rule = "gripper_still" if part.gripper is not None else "dimension_dead"
        notes.add(rule, split, f"{told} is {least:.4g} at all {count:,} steps")
    elif part.gripper is not None and count >= rules.LEAST_GRIPPER_STEPS:
        middle = (part.gripper.open + part.gripper.closed) / 2
        if most <= middle or least >= middle:
            text = f"{told} is from {least:.4g} to {most:.4g} at all {count:,} steps, {_ends(part)}"
            notes.add("gripper_one_sided", split, text)


def check_finite(split: OpenSplit, notes: Notes) -> None:
    """Note episodes with NaN or infinity in the action or state."""

    def describe(vector: str, step: int) -> str:
        values = split.vector(vector)[step]
        dim = int(np.isfinite(values).argmin())
        return f"{vector} {split.dimensions[vector][dim][0]} is {values[dim]}, not finite"

    for vector in split.dimensions:
        infinite = np.zeros(len(split.tables["steps"]), bool)
        # One dimension at a time, to save memory.
        for values in split.vector(vector).T:
            infinite |= ~np.isfinite(values)
        split.note_steps(f"nonfinite_{vector}", infinite, partial(describe, vector), notes)


def check_grippers(split: OpenSplit, notes: Notes) -> None:
    """Note episodes with a gripper beyond open and closed of the registry."""

    def describe(part: Part, values: np.ndarray, step: int) -> str:
        return f"{part.path} is {values[step]:.4g}, {_ends(part)}"

    for vector, dimensions in split.dimensions.items():
        for (_, part), values in zip(dimensions, split.vector(vector).T, strict=True):
            if part.gripper is not None:
                low, high = sorted((part.gripper.open, part.gripper.closed))
                slack = rules.GRIPPER_TOLERANCE * (high - low)
                # A comparison with NaN is False: NaN is another finding.
                beyond = (values < low - slack) | (values > high + slack)
                split.note_steps("gripper_range", beyond, partial(describe, part, values), notes)


def _ends(part: Part) -> str:
    return f"open is {part.gripper.open:g} and closed {part.gripper.closed:g}" if part.gripper else ""


def check_actions(split: OpenSplit, notes: Notes) -> None:
    """Note episodes whose action never changes; it is an error if no episode has one that does."""
    moving = [dim for dim, (_, part) in enumerate(split.dimensions["action"]) if part.kind != "flag"]
    actions, constant = split.vector("action"), []
    for episode in split.episodes if moving else ():
        steps = actions[episode["start"] : episode["stop"], moving]
        if len(steps) >= rules.LEAST_EPISODE_STEPS and (steps == steps[0]).all():
            shown = ", ".join(f"{value:.3g}" for value in steps[0, :8]) + (", ..." if len(moving) > 8 else "")
            constant.append((int(episode["row"]), f"{len(steps):,} steps with one action, ({shown})"))
    dead = len(constant) == len(split.episodes) >= rules.LEAST_EPISODE_STEPS
    for row, text in constant:
        notes.add("actions_dead" if dead else "constant_action", split.name, partial(split.example, row, text))


def check_instructions(split: OpenSplit, notes: Notes) -> None:
    """Note episodes without an instruction, and a single one for all, if the registry says that they inform."""
    instruction = split.vectors.instruction
    if instruction is None or not instruction.informative:
        return
    table, numbers, count = split.tables["steps"], split.column("steps", "language"), len(split.episodes)
    with_records = split.column("episodes", "num_records")[split.column("steps", "episode")] > 0
    used = np.flatnonzero(np.bincount(numbers[with_records])).tolist()
    empty = [number for number in used if not table.text("language", number).strip()]
    rule = "instructions_missing" if empty == used else "instruction_empty"
    split.note_steps(rule, np.isin(numbers, empty), lambda _: "no instruction", notes)
    if len(used) == 1 and not empty:
        text = table.text("language", used[0])
        # A few episodes may have one task, whose instruction is a sentence.
        if count >= rules.LEAST_EPISODES or (count > 1 and len(text.split()) == 1):
            example = partial(Example, text=f"all {count:,} episodes", instruction=text)
            notes.add("instruction_same", split.name, example, count=count)


def check_shards(split: OpenSplit, notes: Notes) -> None:
    """Note shards whose file is missing or has another size; their frames are not looked at."""
    for shard in split.shards:
        try:
            shard.open_records()
        except (FormatError, OSError) as error:
            split.broken.add(shard.number)
            example = partial(Example, shard=shard.entry.name, text=fault(error, shard.path))
            notes.add("unreadable", split.name, example)


def check_outliers(splits: Sequence[OpenSplit], notes: Notes) -> None:
    """Note the episodes of a dataset whose action is far from the others.

    The figures are mean and standard deviation of each dimension that is neither a flag nor a gripper.
    """
    episodes, owners = _all_episodes(splits)
    figures = {
        f"{figure} of action {name}": episodes[figure][:, dim].astype(np.float64)
        for figure in ("mean", "std")
        for dim, (name, part) in enumerate(splits[0].dimensions["action"])
        if part.kind != "flag" and part.quantity != "gripper"
    }
    if not figures or len(episodes) < rules.LEAST_EPISODES:
        return
    scores = np.array([robust_scores(values) for values in figures.values()])
    for number in np.flatnonzero(scores.max(axis=0) > rules.OUTLIER_SCORE).tolist():
        worst = int(scores[:, number].argmax())
        name, values = list(figures.items())[worst]
        text = f"{name} is {values[number]:.4g}, the median of all episodes {np.nanmedian(values):.4g}"
        text += f" (robust z {scores[worst, number]:,.0f})"
        split = splits[owners[number]]
        notes.add("outlier_episode", split.name, partial(split.example, int(episodes["row"][number]), text))


def check_duplicates(splits: Sequence[OpenSplit], notes: Notes) -> None:
    """Note episodes with the actions and the first frame of an earlier one, in the same split or in another."""
    episodes, owners = _all_episodes(splits)
    _, firsts, inverse = np.unique(episodes["digest"], return_index=True, return_inverse=True)
    originals = firsts[inverse]

    def example(number: int) -> Example:
        (split, row), (other, earlier) = (
            (splits[owners[each]], int(episodes["row"][each])) for each in (number, originals[number])
        )
        text = f"same actions and first frame as {other.example(earlier, '').place} of {other.name}"
        return split.example(row, text)

    for number in np.flatnonzero(originals != np.arange(len(episodes))).tolist():
        rule = "duplicate_episode" if owners[number] == owners[originals[number]] else "leakage"
        notes.add(rule, splits[owners[number]].name, partial(example, number))


def _all_episodes(splits: Sequence[OpenSplit]) -> tuple[np.ndarray, np.ndarray]:
    """Return the episodes of all splits, and the number of the split of each."""
    each = [split.episodes for split in splits]
    return np.concatenate(each), np.repeat(np.arange(len(splits)), list(map(len, each)))


SPLIT_CHECKS: tuple[Callable[[OpenSplit, Notes], None], ...] = (
    check_statistics,
    check_finite,
    check_grippers,
    check_actions,
    check_instructions,
    check_shards,
    check_frames,
    *SPACE_CHECKS,
)
DATASET_CHECKS: tuple[Callable[[Sequence[OpenSplit], Notes], None], ...] = (check_outliers, check_duplicates)
