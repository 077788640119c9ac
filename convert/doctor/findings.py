"""Findings of ``convert.doctor``: how often each rule applied, with examples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from convert.doctor.rules import MAX_EXAMPLES, RULES, Rule


@dataclass(frozen=True, kw_only=True)
class Example:
    """One occurrence of a finding; a field that does not apply is None.

    Attributes:
        source_file: Source file of the episode.
        source_position: Number of the episode in the source file.
        shard: Shard or file that has it.
        record: Number of the record in the shard.
        step: Step in the episode, from 0.
        text: Sentence about what was found.
        instruction: Instruction of the episode.
        picture: Small JPEG of it, if pictures were asked for.
    """

    source_file: str | None = None
    source_position: int | None = None
    shard: str | None = None
    record: int | None = None
    step: int | None = None
    text: str
    instruction: str = ""
    picture: bytes | None = field(default=None, repr=False)

    @property
    def place(self) -> str:
        """Location for messages."""
        source = None if self.source_file is None else f"{self.source_file} #{self.source_position}"
        step = None if self.step is None else f"step {self.step}"
        return " ".join(part for part in (source or self.shard, step) if part) or "all"

    def to_json(self) -> dict[str, Any]:
        """Return the example without its picture."""
        return {name: value for name, value in asdict(self).items() if name != "picture"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """All that one rule found in a split; ``split`` is None if it concerns the dataset."""

    rule: Rule
    dataset: str
    version: str
    split: str | None
    count: int
    examples: tuple[Example, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the entry in ``--json``; ``episode`` is that of the first example."""
        first = self.examples[0]
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
    """Count and first examples of what was found, by rule and split."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._examples: defaultdict[tuple[str, str | None], list[Example]] = defaultdict(list)

    def add(self, rule: str, split: str | None, example: str | Callable[[], Example], *, count: int = 1) -> None:
        """Note that a rule applies ``count`` times; ``example`` is a text, or a function that is called if needed."""
        key = (RULES[rule].name, split)
        self._counts[key] += count
        if len(self._examples[key]) < MAX_EXAMPLES:
            self._examples[key].append(Example(text=example) if isinstance(example, str) else example())

    def count(self, rule: str, split: str | None) -> int:
        """Return how often a rule applied."""
        return self._counts[rule, split]

    def move(self, rule: str, split: str | None, to: str, *, text: str | None = None) -> None:
        """Move what one rule found to another, worse one; ``text`` becomes its first example."""
        old, new = (rule, split), (RULES[to].name, split)
        if old in self._counts:
            self._counts[new] = self._counts.pop(old)
            first = [Example(text=text)] if text is not None else []
            self._examples[new] = (first + self._examples.pop(old))[:MAX_EXAMPLES]

    def update(self, other: Notes) -> None:
        """Add what was found elsewhere."""
        self._counts += other._counts
        for key, examples in other._examples.items():
            self._examples[key] = (self._examples[key] + examples)[:MAX_EXAMPLES]

    def findings(self, dataset: str, version: str) -> list[Finding]:
        """Return the findings, the worst first."""
        order = list(RULES)
        return [
            Finding(
                rule=RULES[rule],
                dataset=dataset,
                version=version,
                split=split,
                count=self._counts[rule, split],
                examples=tuple(self._examples[rule, split]),
            )
            for rule, split in sorted(self._counts, key=lambda key: (order.index(key[0]), key[1] or ""))
        ]
