"""Findings of ``convert.doctor``: how often each rule applied, with examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


@dataclass
class Finding:
    """All that one rule found in a split; ``split`` is None if it concerns the dataset."""

    rule: Rule
    split: str | None
    count: int = 0
    examples: list[Example] = field(default_factory=list)

    def add(self, examples: Sequence[Example], *, count: int) -> None:
        """Add ``count`` occurrences, with some examples."""
        self.count += count
        self.examples = [*self.examples, *examples][:MAX_EXAMPLES]

    def to_json(self) -> dict[str, Any]:
        """Return the entry in ``--json``; ``episode`` is that of the first example."""
        first = self.examples[0]
        return {
            "rule": self.rule.name,
            "severity": self.rule.severity,
            "split": self.split,
            "episode": {"source_file": first.source_file, "source_position": first.source_position},
            "count": self.count,
            "unit": self.rule.unit,
            "meaning": self.rule.meaning,
            "examples": [example.to_json() for example in self.examples],
        }


class Notes:
    """Findings by rule and split."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._found: dict[tuple[str, str | None], Finding] = {}

    def _finding(self, rule: str, split: str | None) -> Finding:
        return self._found.setdefault((rule, split), Finding(RULES[rule], split))

    def add(self, rule: str, split: str | None, example: str | Callable[[], Example], *, count: int = 1) -> None:
        """Note that a rule applies ``count`` times; ``example`` is a text, or a function that is called if needed."""
        finding = self._finding(rule, split)
        wanted = len(finding.examples) < MAX_EXAMPLES
        made = [Example(text=example) if isinstance(example, str) else example()] if wanted else []
        finding.add(made, count=count)

    def count(self, rule: str, split: str | None) -> int:
        """Return how often a rule applied."""
        return self._found[rule, split].count if (rule, split) in self._found else 0

    def move(self, rule: str, split: str | None, to: str, *, text: str | None = None) -> None:
        """Move what one rule found to another, worse one; ``text`` becomes its first example."""
        if old := self._found.pop((rule, split), None):
            first = [Example(text=text)] if text is not None else []
            self._finding(to, split).add([*first, *old.examples], count=old.count)

    def update(self, other: Notes) -> None:
        """Add what was found elsewhere."""
        for (rule, split), finding in other._found.items():
            self._finding(rule, split).add(finding.examples, count=finding.count)

    def findings(self) -> list[Finding]:
        """Return the findings, the worst first."""
        order = list(RULES)
        return sorted(self._found.values(), key=lambda found: (order.index(found.rule.name), found.split or ""))
