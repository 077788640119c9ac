"""Faults of a table that does not fit its dataset: counted, with the first few as examples, and told in one error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stream.base.errors import ArgumentError

SHOWN = 5


@dataclass
class Faults:
    """Faults by kind: how many rows have one, and the first of them."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, count: int, examples: Iterable[str]) -> None:
        """Count rows with a fault; only as many examples as are shown are taken."""
        if not count:
            return
        self.counts[kind] = self.counts.get(kind, 0) + count
        first = self.first.setdefault(kind, [])
        for example in examples:
            if len(first) >= SHOWN:
                break
            if example not in first:
                first.append(example)

    def raise_error(self, where: str, hint: str) -> None:
        """Raise ArgumentError if there are faults."""
        if not self.counts:
            return
        told = [
            f"{count:,} {'row' if count == 1 else 'rows'} {kind} ({', '.join(self.first[kind])}"
            f"{', ...' if count > len(self.first[kind]) else ''})"
            for kind, count in self.counts.items()
        ]
        raise ArgumentError(f"{where}: {'; '.join(told)}. {hint}; nothing was written")
