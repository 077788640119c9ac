"""Findings of ``convert.doctor``: how often each rule applied, with examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from convert.doctor.rules import MAX_EXAMPLES, RULES, SEVERITIES, Rule


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
        record = None if self.record is None else f"record {self.record}"
        return " ".join(part for part in (source or self.shard, step, record) if part) or "all"


@dataclass
class Finding:
    """All that one rule found in a split; ``split`` is None if it concerns the dataset."""

    rule: Rule
    split: str | None
    count: int = 0
    examples: list[Example] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the entry in ``--json``; ``episode`` is that of the first example."""
        first, examples = self.examples[0], [asdict(example) for example in self.examples]
        return {
            "rule": self.rule.name,
            "severity": self.rule.severity,
            "split": self.split,
            "episode": {"source_file": first.source_file, "source_position": first.source_position},
            "count": self.count,
            "unit": self.rule.unit,
            "meaning": self.rule.meaning,
            "examples": [{name: each[name] for name in each if name != "picture"} for each in examples],
        }


@dataclass
class Notes:
    """Findings by rule and split."""

    _found: dict[tuple[str, str | None], Finding] = field(default_factory=dict)

    def add(self, rule: str, split: str | None, example: str | Callable[[], Example], *, count: int = 1) -> None:
        """Note that a rule applies ``count`` times; ``example`` is a text, or a function that is called if needed."""
        finding = self._found.setdefault((rule, split), Finding(RULES[rule], split))
        finding.count += count
        if len(finding.examples) < MAX_EXAMPLES:
            finding.examples.append(Example(text=example) if isinstance(example, str) else example())

    def count(self, rule: str, split: str | None) -> int:
        """Return how often a rule applied."""
        return self._found[rule, split].count if (rule, split) in self._found else 0

    def move(self, rule: str, split: str | None, to: str, *, text: str) -> None:
        """Move what one rule found to another, worse one; ``text`` becomes its first example."""
        old = self._found.pop((rule, split))
        examples = [Example(text=text), *old.examples][:MAX_EXAMPLES]
        self._found[to, split] = Finding(RULES[to], split, old.count, examples)

    def findings(self) -> list[Finding]:
        """Return the findings, the worst first."""
        order = list(RULES)
        return sorted(self._found.values(), key=lambda found: (order.index(found.rule.name), found.split or ""))


def count_severities(findings: Sequence[Finding]) -> dict[str, int]:
    """Return the number of findings by severity: ``errors``, ``warnings``, ``hints``."""
    found = [finding.rule.severity for finding in findings]
    return {f"{severity}s": found.count(severity) for severity in SEVERITIES}
