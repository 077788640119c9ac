"""Findings of a verification, as text and as JSON."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from convert.report import format_table, human_bytes, human_seconds
from stream.format.manifest import Manifest, SplitEntry
from stream.format.names import MANIFEST_NAME, QUARANTINE_NAME, shard_file, table_file

_PER_FILE = 10


class Finding(NamedTuple):
    """Something wrong with one file of a dataset.

    Attributes:
        file: Path below the version folder, such as ``train/steps.arrow``.
        text: Sentence about what was found and what was expected.
        sha256: SHA-256 of the file if it differs from the manifest.
    """

    file: str
    text: str
    sha256: str | None = None


class Findings:
    """Findings in the order in which they were added; from the eleventh of a file on, only a count."""

    def __init__(self) -> None:
        """Start with none."""
        self._found: list[Finding] = []
        self._counts: Counter[str] = Counter()

    def add(self, file: str, text: str, *, sha256: str | None = None) -> None:
        """Add something wrong with ``file``: what was found and what was expected."""
        self._counts[file] += 1
        if self._counts[file] <= _PER_FILE:
            self._found.append(Finding(file, text, sha256))

    def close(self) -> list[Finding]:
        """Return the findings, followed by the counts of the others."""
        more = {file: count - _PER_FILE for file, count in self._counts.items() if count > _PER_FILE}
        return self._found + [Finding(file, f"and {count:,} more of these") for file, count in more.items()]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A finding with the dataset and the full path of its file; ``split`` is None if it concerns no single split."""

    dataset: str
    version: str
    split: str | None
    file: str
    problem: str


@dataclass(kw_only=True)
class VersionFolder:
    """One version of a dataset, ``ROOT/<dataset>/<version>``; ``manifest`` is None if it is missing or damaged."""

    folder: Path
    manifest: Manifest | None = None

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return Path(os.path.abspath(self.folder)).parent.name

    @property
    def version(self) -> str:
        """Version of the dataset."""
        return Path(os.path.abspath(self.folder)).name

    @property
    def splits(self) -> dict[str, SplitEntry]:
        """Splits of the manifest."""
        return self.manifest.splits if self.manifest is not None else {}


@dataclass(kw_only=True)
class DatasetReport(VersionFolder):
    """Findings in one version of a dataset.

    Attributes:
        findings: Everything that is wrong.
        notes: Remarks that are no problems.
        incomplete: Whether the conversion can be resumed.
    """

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    incomplete: bool = False

    @property
    def verdict(self) -> str:
        """``ok``, ``damaged`` or ``incomplete``."""
        return "incomplete" if self.incomplete else "damaged" if self.findings else "ok"

    def to_json(self) -> dict[str, Any]:
        """Return the entry in ``--json``. ``bytes`` is the size of indexes and shards; counts are of the manifest."""
        shards = [shard for split in self.splits.values() for shard in split.shards]
        tables = [table for split in self.splits.values() for table in split.index.values()]
        return {
            "dataset": self.dataset,
            "version": self.version,
            "path": str(self.folder),
            "splits": list(self.splits),
            "shards": len(shards),
            "records": sum(shard.records for shard in shards),
            "bytes": sum(file.bytes for file in (*tables, *(shard.file for shard in shards))),
            "verdict": self.verdict,
            "notes": self.notes,
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """Result of a verification; ``seconds`` is the time that it took."""

    root: str
    deep: bool
    seconds: float
    datasets: Sequence[DatasetReport]

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Findings of all datasets, sorted by file. A swapped file is told to which path its bytes belong."""
        owners: dict[str | None, Path] = {}
        for dataset in self.datasets:
            for split, entry in dataset.splits.items():
                folder = dataset.folder / split
                owners |= {table.sha256: folder / table_file(kind) for kind, table in entry.index.items()}
                owners |= {shard.file.sha256: folder / shard_file(shard.name) for shard in entry.shards}
        found = []
        for dataset in self.datasets:
            for file, text, sha256 in sorted(dataset.findings, key=lambda finding: finding.file):
                split = file.split("/", 1)[0]
                found.append(
                    Problem(
                        dataset=dataset.dataset,
                        version=dataset.version,
                        split=split if "/" in file or split in dataset.splits else None,
                        file=str(dataset.folder / file),
                        problem=text + (f"; these are the bytes of {owners[sha256]}" if sha256 in owners else ""),
                    )
                )
        return tuple(found)

    @property
    def ok(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``--json``."""
        return {
            "root": self.root,
            "deep": self.deep,
            "ok": self.ok,
            "datasets": [dataset.to_json() for dataset in self.datasets],
            "problems": [asdict(problem) for problem in self.problems],
        }

    def to_text(self) -> str:
        """Return a table of the datasets, the notes, and the problems with their remedies."""
        header = ["dataset", "version", "splits", "shards", "records", "bytes", "verdict"]
        entries = [dataset.to_json() for dataset in self.datasets]
        shown = [{**e, "splits": ", ".join(e["splits"]) or "-", "bytes": human_bytes(e["bytes"])} for e in entries]
        lines = [format_table(header, [[entry[key] for key in header] for entry in shown])]
        lines += [f"note: {entry['path']}: {note}" for entry in entries for note in entry["notes"]]
        lines += [f"{problem.file}: {problem.problem}" for problem in self.problems]
        if self.problems:
            names = sorted({problem.dataset for problem in self.problems})
            lines += [f"{count_noun(len(self.problems), 'problem')} in {', '.join(names)}", *self._remedies()]
        else:
            shards = sum(entry["shards"] for entry in entries)
            how = "every frame decoded" if self.deep else "sizes, checksums and indexes; --deep decodes every frame"
            lines.append(f"no problems in {count_noun(shards, 'shard')} ({how}), {human_seconds(self.seconds)}")
        return "\n".join(lines)

    def _remedies(self) -> list[str]:
        incomplete = sorted({dataset.dataset for dataset in self.datasets if dataset.incomplete})
        damaged = sorted({problem.dataset for problem in self.problems} - set(incomplete))
        lines = []
        if incomplete:
            lines.append(f"to finish {', '.join(incomplete)}: run the same convert.run command again; it resumes")
        if damaged:
            lines.append(
                f"to repair {', '.join(damaged)}: remove the named files and run the same convert.run command again, "
                f"which makes them again; if {MANIFEST_NAME} or {QUARANTINE_NAME} is named, run it with "
                f"--datasets {','.join(damaged)} --overwrite"
            )
        return lines


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_noun(1, "shard"), count_noun(1200, "shard")
    ('1 shard', '1,200 shards')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
