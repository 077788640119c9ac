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
    for vector, sentence in differing_statistics(split.statistics, computed):
        notes.add("statistics_differ", split.name, f"{vector}: {sentence}")
    for vector, statistics in computed.items():
        for dimension, (dimension_name, part) in enumerate(split.dimensions.get(vector, ())):
            figures = [getattr(statistics, name)[dimension] for name in ("min", "q01", "q99", "max")]
            if None not in figures:
                num_values = statistics.count - statistics.nonfinite[dimension]
                _check_range(split.name, f"{vector} {dimension_name}", part, figures, num_values, notes)


def _check_range(
    split: str, description: str, part: Part, figures: Sequence[float], num_values: int, notes: Notes
) -> None:
    smallest, q01, q99, largest = figures
    if q99 > q01 and max(largest - q99, q01 - smallest) / (q99 - q01) > EXTREME_RANGES:
        sentence = f"{description} goes from {smallest:.4g} to {largest:.4g}, 98 % of it from {q01:.4g} to {q99:.4g}"
        notes.add("extreme_values", split, sentence)
    if num_values < rules.LEAST_STEPS or part.kind == "flag":
        return
    if smallest == largest:
        rule_name = "gripper_still" if part.gripper is not None else "dimension_dead"
        notes.add(rule_name, split, f"{description} is {smallest:.4g} at all {num_values:,} steps")
    elif part.gripper is not None and num_values >= rules.LEAST_GRIPPER_STEPS:
        middle = (part.gripper.open + part.gripper.closed) / 2
        if largest <= middle or smallest >= middle:
            sentence = f"{description} is from {smallest:.4g} to {largest:.4g} at all {num_values:,} steps"
            notes.add("gripper_one_sided", split, f"{sentence}, {_ends(part)}")


def check_finite(split: OpenSplit, notes: Notes) -> None:
    """Note episodes with NaN or infinity in the action or state."""

    def describe(vector: str, step: int) -> str:
        values = split.vector(vector)[step]
        dimension = int(np.isfinite(values).argmin())
        return f"{vector} {split.dimensions[vector][dimension][0]} is {values[dimension]}, not finite"

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
                lower_end, upper_end = sorted((part.gripper.open, part.gripper.closed))
                tolerance = rules.GRIPPER_TOLERANCE * (upper_end - lower_end)
                # A comparison with NaN is False: NaN is another finding.
                is_beyond = (values < lower_end - tolerance) | (values > upper_end + tolerance)
                split.note_steps("gripper_range", is_beyond, partial(describe, part, values), notes)


def _ends(part: Part) -> str:
    return f"open is {part.gripper.open:g} and closed {part.gripper.closed:g}" if part.gripper else ""


def check_actions(split: OpenSplit, notes: Notes) -> None:
    """Note episodes whose action never changes; it is an error if no episode has one that does."""
    moving_dimensions = [number for number, (_, part) in enumerate(split.dimensions["action"]) if part.kind != "flag"]
    actions, constant_episodes = split.vector("action"), []
    for episode in split.episodes if moving_dimensions else ():
        episode_actions = actions[episode["start"] : episode["stop"], moving_dimensions]
        if len(episode_actions) >= rules.LEAST_EPISODE_STEPS and (episode_actions == episode_actions[0]).all():
            values = [f"{value:.3g}" for value in episode_actions[0, :8]] + ["..."] * (len(moving_dimensions) > 8)
            sentence = f"{len(episode_actions):,} steps with one action, ({', '.join(values)})"
            constant_episodes.append((int(episode["row"]), sentence))
    is_dead = len(constant_episodes) == len(split.episodes) >= rules.LEAST_EPISODE_STEPS
    rule_name = "actions_dead" if is_dead else "constant_action"
    for episode_number, sentence in constant_episodes:
        notes.add(rule_name, split.name, partial(split.example, episode_number, sentence))


def check_instructions(split: OpenSplit, notes: Notes) -> None:
    """Note episodes without an instruction, and a single one for all, if the registry says that they inform."""
    instruction = split.vectors.instruction
    if instruction is None or not instruction.informative:
        return
    table, text_numbers, num_episodes = (split.tables["steps"], split.column("steps", "language"), len(split.episodes))
    with_records = split.column("episodes", "num_records")[split.column("steps", "episode")] > 0
    used_texts = np.flatnonzero(np.bincount(text_numbers[with_records])).tolist()
    empty_texts = [number for number in used_texts if not table.text("language", number).strip()]
    rule_name = "instructions_missing" if empty_texts == used_texts else "instruction_empty"
    split.note_steps(rule_name, np.isin(text_numbers, empty_texts), lambda _: "no instruction", notes)
    if len(used_texts) == 1 and not empty_texts:
        instruction_text = table.text("language", used_texts[0])
        # A few episodes may have one task, whose instruction is a sentence.
        if num_episodes >= rules.LEAST_EPISODES or (num_episodes > 1 and len(instruction_text.split()) == 1):
            example = partial(Example, text=f"all {num_episodes:,} episodes", instruction=instruction_text)
            notes.add("instruction_same", split.name, example, count=num_episodes)


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
        f"{figure} of action {name}": episodes[figure][:, dimension].astype(np.float64)
        for figure in ("mean", "std")
        for dimension, (name, part) in enumerate(splits[0].dimensions["action"])
        if part.kind != "flag" and part.quantity != "gripper"
    }
    if not figures or len(episodes) < rules.LEAST_EPISODES:
        return
    scores = np.array([robust_scores(values) for values in figures.values()])
    for episode_number in np.flatnonzero(scores.max(axis=0) > rules.OUTLIER_SCORE).tolist():
        worst_figure = int(scores[:, episode_number].argmax())
        name, values = list(figures.items())[worst_figure]
        sentence = f"{name} is {values[episode_number]:.4g}, the median of all episodes {np.nanmedian(values):.4g}"
        sentence += f" (robust z {scores[worst_figure, episode_number]:,.0f})"
        split = splits[owners[episode_number]]
        notes.add("outlier_episode", split.name, partial(split.example, int(episodes["row"][episode_number]), sentence))


def check_duplicates(splits: Sequence[OpenSplit], notes: Notes) -> None:
    """Note episodes with the actions and the first frame of an earlier one, in the same split or in another."""
    episodes, owners = _all_episodes(splits)
    _, first_numbers, original_of = np.unique(episodes["digest"], return_index=True, return_inverse=True)
    originals = first_numbers[original_of]

    def example(number: int) -> Example:
        split, original_split = (splits[owners[index]] for index in (number, originals[number]))
        original = original_split.example(int(episodes["row"][originals[number]]), "").location
        sentence = f"same actions and first frame as {original} of {original_split.name}"
        return split.example(int(episodes["row"][number]), sentence)

    for episode_number in np.flatnonzero(originals != np.arange(len(episodes))).tolist():
        rule_name = "duplicate_episode" if owners[episode_number] == owners[originals[episode_number]] else "leakage"
        notes.add(rule_name, splits[owners[episode_number]].name, partial(example, episode_number))


def _all_episodes(splits: Sequence[OpenSplit]) -> tuple[np.ndarray, np.ndarray]:
    """Return the episodes of all splits, and the number of the split of each."""
    episodes_by_split = [split.episodes for split in splits]
    return np.concatenate(episodes_by_split), np.repeat(np.arange(len(splits)), list(map(len, episodes_by_split)))


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
