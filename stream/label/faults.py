"""Faults of a table that does not match its dataset: counted, and reported in one error with the first few."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stream.base.errors import ArgumentError

SHOWN = 5


@dataclass
class Faults:
    """Faults by kind: count of rows, and the first rows."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[str]] = field(default_factory=dict)

    def add(self, fault_kind: str, count: int, examples: Iterable[str]) -> None:
        """Count rows with a fault, and keep as many examples as the error shows."""
        if not count:
            return
        self.counts[fault_kind] = self.counts.get(fault_kind, 0) + count
        shown_examples = self.first.setdefault(fault_kind, [])
        for example in examples:
            if len(shown_examples) >= SHOWN:
                break
            if example not in shown_examples:
                shown_examples.append(example)

    def raise_error(self, context: str, hint: str) -> None:
        """Raise ArgumentError if there are faults."""
        if not self.counts:
            return
        fault_texts = [
            f"{count:,} {'row' if count == 1 else 'rows'} {fault_kind} ({', '.join(self.first[fault_kind])}"
            f"{', ...' if count > len(self.first[fault_kind]) else ''})"
            for fault_kind, count in self.counts.items()
        ]
        raise ArgumentError(f"{context}: {'; '.join(fault_texts)}. {hint}; nothing was written")
