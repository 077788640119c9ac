"""What ``convert.doctor`` looks for: the rules with their thresholds, and what a finding is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "hint"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")

MAX_EXAMPLES = 3
"""Of each finding; the count says how many there are."""
BLACK_LEVEL = 16
"""Brightness below which a pixel is black: the black of video."""
BLACK_SHARE = 0.01
"""A frame with at most so many other pixels is black: a dark scene still has a lamp or a reflex."""
FLAT_DEVIATION = 2.0
"""A frame whose channels all have a smaller standard deviation is constant: JPEG of one colour has less than 1, a
wall without anything 5 and more, for noise and shade."""
FROZEN_LEVELS = 4
"""Frames of which no pixel differs by more are the same picture: a camera's noise alone is more, so a robot that stands
still before a live camera is not frozen."""
FROZEN_SHARE = 0.2
"""Episodes begin and end with rest, and simulators have no noise; more than a fifth of all pairs is neither."""
BLANK_SHARE = 0.5
"""Blank frames may be placeholders of some episodes; where they are the half, another camera was meant."""
LEAST_SAMPLED = 8
"""Below so many frames or pairs, a share says nothing."""
LEAST_EPISODE_STEPS = 5
"""Of an episode that is called constant: shorter ones are by chance."""
LEAST_STEPS = 20
"""Of a split of which a dimension or a gripper is said never to move."""
LEAST_GRIPPER_STEPS = 100
"""Of a split of which a gripper is said to use half of its range only: it opens and closes within some seconds."""
LEAST_EPISODES = 20
"""Of a dataset whose median and MAD are compared with: below, half of them would decide."""
OUTLIER_SCORE = 25.0
"""Robust z-score of an episode: tasks within a dataset differ by 5 to 15; degrees in place of radians are a factor of
57, millimetres in place of metres 1000."""
SPREAD_FLOOR = 0.01
"""The least scale of a robust z-score, as a part of q99 - q01: with a MAD of zero every episode would be far away."""
EXTREME_RANGES = 20.0
"""Distance from q01 or q99 in units of q99 - q01 beyond which a value ruins scaling by minimum and maximum."""
GRIPPER_TOLERANCE = 0.05
"""Part of open - closed that a measured gripper may go beyond its ends: sensors overshoot."""
STATISTICS_TOLERANCE = 1e-3
"""Part of the range by which statistics may differ from the manifest's: both are sums in float64, so by far less."""
DAMAGED_SHARE = 0.01
"""Of the episodes, damaged ones: a few are normal for files of this size, one in a hundred is a broken copy."""
PAIRLESS_SHARE = 0.2
"""Of the episodes, such without a pair: then the offset is long for this dataset."""
CAST_SCORE = 3.5
"""Robust z-score of a dataset's red minus blue among the other datasets: the usual limit for outliers."""
CAST_FLOOR = 4.0
"""The least scale for that, in levels of 255: light bulbs differ by more."""
CAST_NEARER = 0.5
"""With red and blue exchanged, a dataset must be at most so far from the others as it is now: a scene that is only
more colourful than others does not come near them."""
CAST_DATASETS = 6
"""Fewer do not show what is usual."""


@dataclass(frozen=True)
class Rule:
    """What is looked for. unit: what ``count`` of its findings counts; meaning: what it does to training."""

    name: str
    severity: Severity
    unit: str
    meaning: str


_ALL = (
    Rule("incomplete", "error", "manifests", "the conversion is not complete or its manifest cannot be used"),
    Rule("unreadable", "error", "files", "training would stop here; python -m convert.verify says more"),
    Rule("frame_damaged", "error", "pairs", "cannot be decoded; python -m convert.verify --deep finds all of them"),
    Rule("nonfinite_action", "error", "episodes", "NaN or infinity in the action makes the loss NaN"),
    Rule("nonfinite_state", "error", "episodes", "NaN or infinity in the state makes the loss NaN"),
    Rule("frames_blank", "error", "frames", "half of the frames or more show nothing; is it the right camera?"),
    Rule("actions_dead", "error", "episodes", "no episode has an action that changes"),
    Rule("instructions_missing", "error", "episodes", "no episode has an instruction, the registry says that they do"),
    Rule("leakage", "error", "episodes", "the same episode is in two splits: validation sees what was trained on"),
    Rule("statistics_differ", "error", "dimensions", "the manifest's statistics are not of these files"),
    Rule("split_empty", "warning", "splits", "nothing can be drawn from it"),
    Rule("source_damaged", "warning", "episodes", "the source had damaged episodes; see quarantine.jsonl"),
    Rule("frame_black", "warning", "frames", "shows nothing: the camera was off or covered"),
    Rule("frame_constant", "warning", "frames", "has one colour: a placeholder, or no camera"),
    Rule("frozen_pairs", "warning", "pairs", "both frames are the same picture: there is nothing to learn from them"),
    Rule("frozen_episode", "warning", "episodes", "its pictures never change, though the camera's noise alone would"),
    Rule("constant_action", "warning", "episodes", "the action is the same at every step"),
    Rule("gripper_range", "warning", "episodes", "the gripper is beyond open and closed of the registry"),
    Rule("gripper_still", "warning", "dimensions", "the gripper never moves in this split"),
    Rule("outlier_episode", "warning", "episodes", "other units or a fault: far from the other episodes"),
    Rule("extreme_values", "warning", "dimensions", "scaled by minimum and maximum, all others are one point"),
    Rule("instruction_empty", "warning", "episodes", "has no instruction at some step, the registry says they do"),
    Rule("duplicate_episode", "warning", "episodes", "is there twice; a cut such as train[90%:] may part the copies"),
    Rule("registry_changed", "hint", "entries", "python -m convert.reindex brings vectors and statistics up to date"),
    Rule("without_pairs", "hint", "episodes", "gave no pair: the offset is long for this dataset"),
    Rule("gripper_one_sided", "hint", "dimensions", "never comes near one of its ends: another scale?"),
    Rule("dimension_dead", "hint", "dimensions", "has one value only; to divide by its std is to divide by zero"),
    Rule("instruction_same", "hint", "episodes", "one instruction for all, though the registry says they inform"),
    Rule("colours_swapped", "hint", "frames", "with red and blue exchanged it would be as others; look at it"),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}
"""By name, the worst first."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something was found; what does not apply is None.

    source_file, source_position: of the episode. shard, record: where its frames lie. step: in the episode, from 0.
    """

    source_file: str | None = None
    source_position: int | None = None
    shard: str | None = None
    record: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        parts = []
        if self.source_file is not None:
            parts.append(f"{self.source_file} #{self.source_position}")
        elif self.shard is not None:
            parts.append(self.shard)
        if self.step is not None:
            parts.append(f"step {self.step}")
        return " ".join(parts) or "all"


@dataclass(frozen=True, kw_only=True)
class Example:
    """One place of a finding. picture: a small JPEG of it, where pictures were asked for."""

    place: Place
    text: str
    instruction: str = ""
    picture: bytes | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return it without the picture."""
        place = self.place
        return {
            "source_file": place.source_file,
            "source_position": place.source_position,
            "shard": place.shard,
            "record": place.record,
            "step": place.step,
            "text": self.text,
            "instruction": self.instruction,
        }


@dataclass(frozen=True, kw_only=True)
class Finding:
    """All that one rule found in a split; split is None where it is about the dataset as a whole."""

    rule: Rule
    dataset: str
    version: str
    split: str | None
    count: int
    examples: tuple[Example, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it; ``episode`` is that of the first example."""
        first = self.examples[0].place if self.examples else Place()
        return {
            "rule": self.rule.name,
            "severity": self.rule.severity,
            "dataset": self.dataset,
            "version": self.version,
            "split": self.split,
            "episode": {"source_file": first.source_file, "source_position": first.source_position},
            "count": self.count,
            "unit": self.rule.unit,
            "meaning": self.rule.meaning,
            "examples": [example.to_json() for example in self.examples],
        }


class Notes:
    """What was found so far, by rule and split: how often, and the first examples."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: dict[tuple[str, str | None], int] = {}
        self._examples: dict[tuple[str, str | None], list[Example]] = {}

    def add(self, rule: str, split: str | None, example: Example, *, count: int = 1) -> None:
        """Note that a rule of this name applies ``count`` times."""
        key = (RULES[rule].name, split)
        self._counts[key] = self._counts.get(key, 0) + count
        kept = self._examples.setdefault(key, [])
        if len(kept) < MAX_EXAMPLES:
            kept.append(example)

    def wants(self, rule: str, split: str | None) -> bool:
        """Return whether another example would be kept, so that it is worth a picture."""
        return len(self._examples.get((rule, split), ())) < MAX_EXAMPLES

    def count(self, rule: str, split: str | None) -> int:
        """Return how often a rule applied."""
        return self._counts.get((rule, split), 0)

    def move(self, rule: str, split: str | None, to: str, *, example: Example | None = None) -> None:
        """Put what one rule found under another, worse one; ``example`` comes first there."""
        old, new = (rule, split), (RULES[to].name, split)
        if old in self._counts:
            self._counts[new] = self._counts.pop(old)
            examples = ([example] if example is not None else []) + self._examples.pop(old)
            self._examples[new] = examples[:MAX_EXAMPLES]

    def update(self, others: Iterable[Notes]) -> None:
        """Add what others found, in their order."""
        for other in others:
            for key, count in other._counts.items():
                self._counts[key] = self._counts.get(key, 0) + count
                kept = self._examples.setdefault(key, [])
                kept += other._examples[key][: MAX_EXAMPLES - len(kept)]

    def findings(self, dataset: str, version: str) -> tuple[Finding, ...]:
        """Return the findings, the worst first."""
        order = {name: number for number, name in enumerate(RULES)}
        return tuple(
            Finding(
                rule=RULES[rule],
                dataset=dataset,
                version=version,
                split=split,
                count=self._counts[rule, split],
                examples=tuple(self._examples[rule, split]),
            )
            for rule, split in sorted(self._counts, key=lambda key: (order[key[0]], key[1] or ""))
        )
