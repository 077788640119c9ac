"""Checks on the columns of a converted shard, and on what all shards of a dataset say of its actions together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from convert.doctor.columns import Episodes, OpenShard
from convert.doctor.rules import (
    EXTREME_RANGES,
    GRIPPER_TOLERANCE,
    LEAST_EPISODE_STEPS,
    LEAST_EPISODES,
    LEAST_GRIPPER_STEPS,
    LEAST_STEPS,
    OUTLIER_SCORE,
    SPREAD_FLOOR,
    STATISTICS_TOLERANCE,
    Example,
    Notes,
    Place,
)
from convert.doctor.spec import Description, Dimension
from stream.format.manifest import Manifest, Statistics
from stream.format.names import DERIVED

_FLOAT32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Moments:
    """Moments of each dimension of a vector over the steps seen, float64 [dimensions].

    Attributes:
        count: Finite values.
        nonfinite: NaN and infinities.
        mean: Mean of the finite values.
        squares: Sum of squared deviations from the mean.
        low: Minimum.
        high: Maximum.
    """

    count: np.ndarray
    nonfinite: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Compute them of float32 [steps, dimensions]."""
        finite = np.isfinite(values)
        exact = np.where(finite, values, 0).astype(np.float64)
        count = finite.sum(0).astype(np.float64)
        mean = exact.sum(0) / np.maximum(count, 1)
        squares = (np.where(finite, exact - mean, 0) ** 2).sum(0)
        low = np.where(finite, values, np.inf).min(0, initial=np.inf)
        high = np.where(finite, values, -np.inf).max(0, initial=-np.inf)
        return cls(count, len(values) - count, mean, squares, low.astype(np.float64), high.astype(np.float64))

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        apart = other.mean - self.mean
        return Moments(
            count,
            self.nonfinite + other.nonfinite,
            self.mean + apart * share,
            self.squares + other.squares + apart**2 * self.count * share,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of the population."""
        return np.sqrt(self.squares / np.maximum(self.count, 1))


@dataclass(frozen=True)
class ShardColumns:
    """What the columns of a shard say.

    Attributes:
        moments: Moments of ``action`` and ``state`` over all steps.
        rows: Episodes with pairs, int [episodes].
        digests: Digest of the actions of each of them, uint64 [episodes].
        means: Mean of each one's action, float32 [episodes, dimensions].
        stds: Standard deviation of each one's action, float32 [episodes, dimensions].
        constant: Whether each one's action never changes, bool [episodes].
        texts: Up to two different instructions.
    """

    moments: dict[str, Moments]
    rows: np.ndarray
    digests: np.ndarray
    means: np.ndarray
    stds: np.ndarray
    constant: np.ndarray
    texts: frozenset[str]


def check_columns(shard: OpenShard, episodes: Episodes, spec: Description, notes: Notes) -> ShardColumns:
    """Check all steps of a shard; raises what ``OpenShard`` does."""
    split, vectors, moments = shard.place.split, {}, {}
    for which in DERIVED:
        vectors[which] = shard.vector(which, len(spec.dimensions[which]))
        moments[which] = Moments.of(vectors[which])
        _check_finite(which, spec, vectors[which], episodes, split, notes)
        _check_grippers(which, spec, vectors[which], episodes, split, notes)
    values, moving = vectors["action"], spec.moving
    count, dims = len(episodes.paired), values.shape[1]
    digests, constant = np.zeros(count, np.uint64), np.zeros(count, bool)
    means, stds = np.zeros((count, dims), np.float32), np.zeros((count, dims), np.float32)
    identity = values if dims else vectors["state"]
    for number, (row, start, stop) in enumerate(episodes.spans()):
        steps = values[start:stop]
        seal = hashlib.blake2b(np.ascontiguousarray(identity[start:stop]).data, digest_size=8, salt=b"%d" % len(steps))
        digests[number] = int.from_bytes(seal.digest(), "little")
        with np.errstate(all="ignore"):
            means[number], stds[number] = steps.mean(0, dtype=np.float64), steps.std(0, dtype=np.float64)
        if moving and len(steps) >= LEAST_EPISODE_STEPS and (steps[:, moving] == steps[0, moving]).all():
            constant[number] = True
            text = f"{len(steps):,} steps with one action, {_short(steps[0, moving])}"
            notes.add("constant_action", split, episodes.example(row, text))
    texts = _check_instructions(shard, episodes, spec, notes)
    return ShardColumns(moments, episodes.paired, digests, means, stds, constant, texts)


def check_dataset(
    spec: Description, manifest: Manifest, shards: Mapping[str, Sequence[ShardColumns]], notes: Notes
) -> None:
    """Check what the shards of each split say together; ``notes`` already has what each of them gave."""
    for split, found in shards.items():
        if not found:
            continue
        for which, dimensions in spec.dimensions.items():
            moments = found[0].moments[which]
            for other in found[1:]:
                moments += other.moments[which]
            # With a shard missing, its figures are too.
            if len(found) == len(manifest.splits[split].shards) and dimensions:
                stored = manifest.statistics.get(split, {}).get(which)  # type: ignore[call-overload]
                _compare(which, dimensions, moments, stored, split, notes)
            _check_ranges(which, spec, moments, split, notes)
        episodes = sum(len(shard.rows) for shard in found)
        constant = sum(int(shard.constant.sum()) for shard in found)
        if episodes >= LEAST_EPISODE_STEPS and constant == episodes:
            notes.move("constant_action", split, "actions_dead")
        texts = frozenset().union(*(shard.texts for shard in found))
        if texts and not any(text.strip() for text in texts):
            notes.move("instruction_empty", split, "instructions_missing")
        if len(texts) == 1 and episodes >= LEAST_EPISODES and next(iter(texts)).strip():
            example = Example(place=Place(), text=f"all {episodes:,} episodes", instruction=next(iter(texts)))
            notes.add("instruction_same", split, example, count=episodes)


def far_episodes(spec: Description, columns: Sequence[ShardColumns]) -> Iterator[tuple[int, int, str]]:
    """Yield (number in ``columns``, row in that shard, why) of episodes whose action is far from that of the others.

    Compared are mean and standard deviation of each dimension that is neither a flag nor a gripper, by distance from
    the median over the median absolute deviation.
    """
    whose = np.concatenate([np.full(len(shard.rows), number) for number, shard in enumerate(columns)] or [np.zeros(0)])
    if len(whose) < LEAST_EPISODES:
        return
    rows = np.concatenate([shard.rows for shard in columns])
    worst = np.zeros(len(whose))
    why = np.full(len(whose), -1)
    figures: list[tuple[int, str, np.ndarray]] = []
    for name in ("mean", "std"):
        table = np.concatenate([getattr(shard, f"{name}s") for shard in columns])
        figures += [(dim, name, table[:, dim].astype(np.float64)) for dim in spec.smooth]
    for number, (_, _, values) in enumerate(figures):
        scores = robust_scores(values)
        further = scores > worst
        worst[further], why[further] = scores[further], number
    names = [dimension.name for dimension in spec.dimensions["action"]]
    for episode in np.flatnonzero(worst > OUTLIER_SCORE).tolist():
        dim, name, values = figures[why[episode]]
        middle = float(np.median(values[np.isfinite(values)]))
        text = (
            f"{name} of action {names[dim]} is {values[episode]:.4g}, the median of all episodes {middle:.4g} "
            f"(robust z {worst[episode]:,.0f})"
        )
        yield int(whose[episode]), int(rows[episode]), text


def robust_scores(values: np.ndarray) -> np.ndarray:
    """Return how far each value is from the median, in units of the scaled median absolute deviation.

    NaN has 0, and the unit is at least ``SPREAD_FLOOR`` of q99 - q01. Where that is zero too, nothing is far.

    >>> robust_scores(np.array([1.0, 2.0, 3.0, 4.0, 5.0])).round(2).tolist()
    [1.35, 0.67, 0.0, 0.67, 1.35]
    """
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(len(values))
    middle = np.median(values[finite])
    apart = np.where(finite, np.abs(values - middle), 0)
    low, high = np.quantile(values[finite], (0.01, 0.99))
    unit = max(1.4826 * float(np.median(apart[finite])), SPREAD_FLOOR * float(high - low))
    return apart / unit if unit > 0 else np.zeros(len(values))


def _check_finite(
    which: str, spec: Description, values: np.ndarray, episodes: Episodes, split: str, notes: Notes
) -> None:
    finite = np.isfinite(values)
    if finite.all():
        return
    for row, start, stop in episodes.spans():
        steps, dims = np.nonzero(~finite[start:stop])
        if len(steps):
            found, name = values[start + steps[0], dims[0]], spec.dimensions[which][dims[0]].name
            text = f"{which} {name} is {found}; {len(steps):,} such values in {stop - start:,} steps"
            notes.add(f"nonfinite_{which}", split, episodes.example(row, text, step=int(steps[0])))


def _check_grippers(
    which: str, spec: Description, values: np.ndarray, episodes: Episodes, split: str, notes: Notes
) -> None:
    for dim, described, gripper in spec.grippers(which):
        low, high = sorted((gripper.open, gripper.closed))
        slack = GRIPPER_TOLERANCE * (high - low)
        column = values[:, dim]
        # A comparison with NaN is False: that is another finding.
        outside = (column < low - slack) | (column > high + slack)
        if not outside.any():
            continue
        for row, start, stop in episodes.spans():
            if len(steps := np.flatnonzero(outside[start:stop])):
                text = (
                    f"{described.path} is {column[start + steps[0]]:.4g} at {len(steps):,} of {stop - start:,} steps, "
                    f"open is {gripper.open:g} and closed {gripper.closed:g}"
                )
                notes.add("gripper_range", split, episodes.example(row, text, step=int(steps[0])))


def _check_instructions(shard: OpenShard, episodes: Episodes, spec: Description, notes: Notes) -> frozenset[str]:
    if not spec.informative:
        return frozenset()
    numbers, texts = shard.language()
    empty = np.array([not text.strip() for text in texts], bool)[numbers] if texts else np.zeros(0, bool)
    used: set[int] = set()
    for row, start, stop in episodes.spans():
        if len(used) < 2:
            used |= set(np.unique(numbers[start:stop]).tolist())
        if len(steps := np.flatnonzero(empty[start:stop])):
            told = f"no instruction at {len(steps):,} of {stop - start:,} steps"
            notes.add("instruction_empty", shard.place.split, episodes.example(row, told, step=int(steps[0])))
    return frozenset(texts[number] for number in sorted(used)[:2])


def _compare(
    which: str,
    dimensions: Sequence[Dimension],
    found: Moments,
    stored: Statistics | None,
    split: str,
    notes: Notes,
) -> None:
    if stored is None or len(stored.mean) != len(dimensions):
        count = len(stored.mean) if stored else 0
        text = f"{which} has {len(dimensions)} dimensions, the manifest's statistics {count}"
        notes.add("statistics_differ", split, Example(place=Place(), text=text), count=len(dimensions))
        return
    for dim, name in enumerate(found.name for found in dimensions):
        if found.nonfinite[dim] != stored.nonfinite[dim]:
            text = (
                f"{which} {name}: {found.nonfinite[dim]:.0f} values not finite, in the manifest {stored.nonfinite[dim]}"
            )
            notes.add("statistics_differ", split, Example(place=Place(), text=text))
            continue
        if not found.count[dim]:
            continue
        low, high = float(found.low[dim]), float(found.high[dim])
        # Of a dimension that never changes, the range says nothing; its values are float32.
        slack = STATISTICS_TOLERANCE * (high - low) + _FLOAT32 * max(abs(low), abs(high))
        pairs = (("mean", found.mean), ("std", found.std), ("min", found.low), ("max", found.high))
        for figure, values in pairs:
            said = getattr(stored, figure)[dim]
            if said is None or abs(float(values[dim]) - said) > slack:
                text = f"{which} {name}: {figure} is {values[dim]:.6g}, in the manifest {said}"
                notes.add("statistics_differ", split, Example(place=Place(), text=text))
                break
        else:
            _check_extremes(which, name, dim, stored, split, notes)


def _check_extremes(which: str, name: str, dim: int, stored: Statistics, split: str, notes: Notes) -> None:
    low, high, least, most = (getattr(stored, key)[dim] for key in ("q01", "q99", "min", "max"))
    if low is None or high is None or least is None or most is None or not high > low:
        return
    furthest = max(most - high, low - least) / (high - low)
    if furthest > EXTREME_RANGES:
        text = f"{which} {name} goes from {least:.4g} to {most:.4g}, 98 % of it from {low:.4g} to {high:.4g}"
        notes.add("extreme_values", split, Example(place=Place(), text=text))


def _check_ranges(which: str, spec: Description, found: Moments, split: str, notes: Notes) -> None:
    for dim, described in enumerate(spec.dimensions[which]):
        if found.count[dim] < LEAST_STEPS or described.mode == "flag":
            continue
        name, gripper = described.name, described.gripper
        low, high = float(found.low[dim]), float(found.high[dim])
        steps = f"at all {found.count[dim]:,.0f} steps"
        if low == high:
            rule = "gripper_still" if gripper is not None else "dimension_dead"
            notes.add(rule, split, Example(place=Place(), text=f"{which} {name} is {low:.4g} {steps}"))
        elif gripper is not None and found.count[dim] >= LEAST_GRIPPER_STEPS:
            middle = (gripper.open + gripper.closed) / 2
            if high <= middle or low >= middle:
                text = (
                    f"{which} {name} is from {low:.4g} to {high:.4g} {steps}, open is {gripper.open:g} and closed "
                    f"{gripper.closed:g}"
                )
                notes.add("gripper_one_sided", split, Example(place=Place(), text=text))


def _short(values: np.ndarray) -> str:
    shown = ", ".join(f"{value:.3g}" for value in values[:8])
    return f"({shown}{', ...' if len(values) > 8 else ''})"
