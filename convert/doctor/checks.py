"""Checks of actions, states and instructions: of a split, of each episode of a shard, and of all episodes together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import xxhash

from convert.doctor import rules
from convert.doctor.findings import Example, Notes
from convert.doctor.open_shard import OpenShard
from convert.doctor.spec import Description, Dimension
from convert.verify.vectors import differing_statistics
from stream.format.manifest import Statistics


def check_statistics(
    split: str,
    spec: Description,
    stored: Mapping[Any, Statistics],
    computed: Mapping[Any, Statistics],
    notes: Notes,
) -> None:
    """Check the statistics of a split in the manifest, ``stored``, against ``computed``, and the range of each one."""
    faults: dict[tuple[str, str], str] = {}
    for vector, name, text in differing_statistics(stored, computed):
        faults.setdefault((vector, name), f"{vector}: {text}")
    for text in faults.values():
        notes.add("statistics_differ", split, text)
    for vector, statistics in computed.items():
        for dim, dimension in enumerate(spec.dimensions.get(vector, ())):
            _check_range(vector, dimension, dim, statistics, split, notes)


def _check_range(vector: str, dimension: Dimension, dim: int, statistics: Statistics, split: str, notes: Notes) -> None:
    count = statistics.count - statistics.nonfinite[dim]
    least, most, low, high = (getattr(statistics, key)[dim] for key in ("min", "max", "q01", "q99"))
    if least is None or most is None or low is None or high is None:
        return
    told, gripper = f"{vector} {dimension.name}", dimension.part.gripper
    if high > low and max(most - high, low - least) / (high - low) > rules.EXTREME_RANGES:
        text = f"{told} goes from {least:.4g} to {most:.4g}, 98 % of it from {low:.4g} to {high:.4g}"
        notes.add("extreme_values", split, text)
    if count < rules.LEAST_STEPS or dimension.part.kind == "flag":
        return
    if least == most:
        rule = "gripper_still" if gripper is not None else "dimension_dead"
        notes.add(rule, split, f"{told} is {least:.4g} at all {count:,} steps")
    elif gripper is not None and count >= rules.LEAST_GRIPPER_STEPS:
        middle = (gripper.open + gripper.closed) / 2
        if most <= middle or least >= middle:
            text = f"{told} is from {least:.4g} to {most:.4g} at all {count:,} steps"
            notes.add("gripper_one_sided", split, f"{text}, open is {gripper.open:g} and closed {gripper.closed:g}")


def check_vectors(shard: OpenShard, spec: Description, notes: Notes) -> np.ndarray:
    """Check actions and states of all steps of a shard.

    Returns:
        Facts about the episodes with records, a structured array [episodes]: ``shard`` is left to the caller, ``row``
        is counted in the shard, ``digest`` is of the actions and the first record, ``mean`` and ``std`` are of the
        action, and ``constant`` is whether the action never changes.

    Raises:
        FormatError, OSError: The index cannot be read.
    """
    vectors = {which: shard.vector(which, len(dimensions)) for which, dimensions in spec.dimensions.items()}
    for which, values in vectors.items():
        _check_finite(shard, which, spec.dimensions[which], values, notes)
        for dim, dimension in enumerate(spec.dimensions[which]):
            _check_gripper(shard, dimension, values[:, dim], notes)
    actions, moving = (
        vectors["action"],
        [dim for dim, (_, part) in enumerate(spec.dimensions["action"]) if part.kind != "flag"],
    )
    identity = actions if actions.shape[1] else vectors["state"]
    checksums = shard.column("records", "xxh3_64")
    spans = list(shard.paired_episodes())
    figures = [(name, np.float32, actions.shape[1:]) for name in ("mean", "std")]
    names = [("shard", np.int64), ("row", np.int64), ("digest", np.uint64), ("constant", bool)]
    facts = np.zeros(len(spans), [*names, *figures])
    for fact, (row, start, stop) in zip(facts, spans, strict=True):
        steps, length = actions[start:stop], stop - start
        seed = int(checksums[shard.records_of(row)[0]]) ^ length
        fact["row"], fact["digest"] = row, xxhash.xxh3_64_intdigest(identity[start:stop].tobytes(), seed=seed)
        with np.errstate(all="ignore"):
            fact["mean"], fact["std"] = steps.mean(0, dtype=np.float64), steps.std(0, dtype=np.float64)
        if moving and length >= rules.LEAST_EPISODE_STEPS and (steps[:, moving] == steps[0, moving]).all():
            fact["constant"] = True
            text = f"{length:,} steps with one action, {_short(steps[0, moving])}"
            notes.add("constant_action", shard.place.split, partial(shard.example, row, text))
    return facts


def _check_finite(
    shard: OpenShard, which: str, dimensions: Sequence[Dimension], values: np.ndarray, notes: Notes
) -> None:
    infinite = ~np.isfinite(values)

    def describe(step: int, share: str) -> str:
        dim = int(infinite[step].argmax())
        return f"{which} {dimensions[dim].name} is {values[step, dim]}; not finite at {share}"

    shard.note_steps(f"nonfinite_{which}", infinite.any(axis=1), describe, notes)


def _check_gripper(shard: OpenShard, dimension: Dimension, values: np.ndarray, notes: Notes) -> None:
    gripper = dimension.part.gripper
    if gripper is None:
        return
    low, high = sorted((gripper.open, gripper.closed))
    slack = rules.GRIPPER_TOLERANCE * (high - low)
    ends = f"open is {gripper.open:g} and closed {gripper.closed:g}"
    shard.note_steps(
        "gripper_range",
        # A comparison with NaN is False: NaN is another finding.
        (values < low - slack) | (values > high + slack),
        lambda step, share: f"{dimension.part.path} is {values[step]:.4g} at {share}, {ends}",
        notes,
    )


def check_instructions(shard: OpenShard, notes: Notes) -> frozenset[str]:
    """Note episodes with steps without an instruction; return up to two different instructions."""
    numbers, texts = shard.language()
    empty = np.array([not text.strip() for text in texts], bool)[numbers] if texts else np.zeros(0, bool)
    shard.note_steps("instruction_empty", empty, lambda _, share: f"no instruction at {share}", notes)
    used: set[int] = set()
    for _, start, stop in shard.paired_episodes():
        if len(used) < 2:
            used |= set(np.unique(numbers[start:stop]).tolist())
    return frozenset(texts[number] for number in sorted(used)[:2])


def check_split(split: str, episodes: np.ndarray, texts: Collection[str], notes: Notes) -> None:
    """Check all episodes of a split together: the facts of ``check_vectors`` and some of their instructions."""
    if len(episodes) >= rules.LEAST_EPISODE_STEPS and episodes["constant"].all():
        notes.move("constant_action", split, "actions_dead")
    if texts and not any(text.strip() for text in texts):
        notes.move("instruction_empty", split, "instructions_missing")
    elif len(texts) == 1 and len(episodes) >= rules.LEAST_EPISODES:
        example = partial(Example, text=f"all {len(episodes):,} episodes", instruction=next(iter(texts)))
        notes.add("instruction_same", split, example, count=len(episodes))


def far_episodes(spec: Description, episodes: np.ndarray) -> Iterator[tuple[int, str]]:
    """Yield (number, reason) of each episode of a dataset whose action is far from the others.

    The figures are mean and standard deviation of each dimension that is neither a flag nor a gripper.
    """
    figures = [
        (f"{name} of action {dimension.name}", episodes[name][:, dim].astype(np.float64))
        for name in ("mean", "std")
        for dim, dimension in enumerate(spec.dimensions["action"])
        if dimension.part.kind != "flag" and dimension.part.quantity != "gripper"
    ]
    if not figures or len(episodes) < rules.LEAST_EPISODES:
        return
    scores = np.array([robust_scores(values) for _, values in figures])
    for episode in np.flatnonzero(scores.max(axis=0) > rules.OUTLIER_SCORE).tolist():
        worst = scores[:, episode].argmax()
        name, values = figures[worst]
        text = f"{name} is {values[episode]:.4g}, the median of all episodes {np.nanmedian(values):.4g}"
        yield episode, f"{text} (robust z {scores[worst, episode]:,.0f})"


def robust_scores(values: np.ndarray) -> np.ndarray:
    """Return the distance of each value from the median, in units of the scaled median absolute deviation.

    NaN has 0. The unit is at least ``SPREAD_FLOOR`` of q99 - q01; if both are zero, all values have 0.

    >>> robust_scores(np.array([1.0, 2.0, 3.0, 4.0, 5.0])).round(2).tolist()
    [1.35, 0.67, 0.0, 0.67, 1.35]
    """
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(len(values))
    low, middle, high = np.quantile(values[finite], (0.01, 0.5, 0.99))
    apart = np.where(finite, np.abs(values - middle), 0)
    unit = max(1.4826 * float(np.median(apart[finite])), rules.SPREAD_FLOOR * float(high - low))
    return apart / unit if unit > 0 else np.zeros(len(values))


def _short(values: np.ndarray) -> str:
    shown = ", ".join(f"{value:.3g}" for value in values[:8])
    return f"({shown}{', ...' if len(values) > 8 else ''})"
