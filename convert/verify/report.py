"""Findings of a verification, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from convert.datasets import VersionFolder
from convert.report import count_noun, fault, format_table, human_bytes, human_seconds
from convert.storage.durable import describe_file
from stream.format.manifest import FileEntry
from stream.format.names import MANIFEST_NAME, QUARANTINE_NAME

_PER_FILE = 10


class Finding(NamedTuple):
    """Something wrong with one file.

    Attributes:
        file: Path of the file.
        text: Sentence about what was found and what was expected.
        sha256: SHA-256 of the file if it differs from the manifest.
        times: Number of times that it was found; the sentence is about the first.
    """

    file: Path
    text: str
    sha256: str | None = None
    times: int = 1


@dataclass
class Findings:
    """Findings in the order in which they were added; from the eleventh of a file on, only a count."""

    _found: dict[tuple[Path, str], Finding] = field(default_factory=dict)
    _counts: Counter[Path] = field(default_factory=Counter)

    def add(self, file: Path, text: str, *, check: str = "", times: int = 1, sha256: str | None = None) -> None:
        """Add a finding; of a named check, only the first sentence about a file is kept, with the sum of ``times``."""
        key = (file, check or text)
        if before := self._found.get(key):
            self._found[key] = before._replace(times=before.times + times)
            return
        self._counts[file] += 1
        if self._counts[file] <= _PER_FILE:
            self._found[key] = Finding(file, text, sha256, times)

    def check_file(self, path: Path, entry: FileEntry) -> bool:
        """Return whether a file has the size and SHA-256 of its manifest entry; add a finding if not."""
        try:
            found = describe_file(path)
        except FileNotFoundError:
            self.add(path, f"is not there, expected {human_bytes(entry.bytes)}")
            return False
        except OSError as error:
            self.add(path, fault(error, path))
            return False
        if found.bytes != entry.bytes:
            self.add(path, f"has {found.bytes:,} bytes, expected {entry.bytes:,}", sha256=found.sha256)
        elif found.sha256 != entry.sha256:
            self.add(path, f"has SHA-256 {found.sha256}, expected {entry.sha256}", sha256=found.sha256)
        return (found.bytes, found.sha256) == (entry.bytes, entry.sha256)

    def close(self) -> list[Finding]:
        """Return the findings, followed by the counts of the others."""
        more = {file: count - _PER_FILE for file, count in self._counts.items() if count > _PER_FILE}
        return [*self._found.values(), *(Finding(file, f"and {n:,} more of these") for file, n in more.items())]


@dataclass(frozen=True)
class Problem:
    """A finding with its dataset; ``split`` is None if it concerns no single split."""

    dataset: str
    version: str
    split: str | None
    file: str
    problem: str


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
        return {
            "dataset": self.dataset,
            "version": self.version,
            "path": str(self.folder),
            "splits": list(self.splits),
            "shards": sum(len(split.shards) for split in self.splits.values()),
            "records": sum(split.records for split in self.splits.values()),
            "bytes": sum(entry.bytes for _, entry in self.files()),
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
            owners |= {entry.sha256: path for path, entry in dataset.files()}
        found = []
        for dataset in self.datasets:
            for file, text, sha256, times in sorted(dataset.findings, key=lambda finding: finding.file):
                top = file.relative_to(dataset.folder).parts[0]
                split = top if file.parent != dataset.folder or top in dataset.splits else None
                text += f" (the first of {times:,})" if times > 1 else ""
                text += f"; these are the bytes of {owners[sha256]}" if sha256 in owners else ""
                found.append(Problem(dataset.dataset, dataset.version, split=split, file=str(file), problem=text))
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
        if self.ok:
            shards = count_noun(sum(entry["shards"] for entry in entries), "shard")
            how = "every frame decoded" if self.deep else "sizes, checksums and indexes; --deep decodes every frame"
            return "\n".join([*lines, f"no problems in {shards} ({how}), {human_seconds(self.seconds)}"])
        incomplete = sorted({dataset.dataset for dataset in self.datasets if dataset.incomplete})
        names = sorted({problem.dataset for problem in self.problems})
        lines.append(f"{count_noun(len(self.problems), 'problem')} in {', '.join(names)}")
        if incomplete:
            lines.append(f"to finish {', '.join(incomplete)}: run the same convert.run command again; it resumes")
        if damaged := [name for name in names if name not in incomplete]:
            lines.append(
                f"to repair {', '.join(damaged)}: remove the named files and run the same convert.run command again, "
                f"which makes them again; if {MANIFEST_NAME} or {QUARANTINE_NAME} is named, run it with "
                f"--datasets {','.join(damaged)} --overwrite"
            )
        return "\n".join(lines)
