"""What a verification found, and how it is told to people and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from convert.report import format_table, human_bytes, human_seconds
from stream.format.names import MANIFEST_NAME, QUARANTINE_NAME

_PER_FILE = 10


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong with one file of a dataset.

    file: below the version folder, ``train/steps.arrow``. sha256: of what was found there, where
    that is not what the manifest says.
    """

    file: str
    text: str
    sha256: str | None = None


class Findings:
    """Findings in the order they were made; of the tenth of one file on, only how many."""

    def __init__(self) -> None:
        """Start with none."""
        self._found: list[Finding] = []
        self._counts: Counter[str] = Counter()

    def add(self, file: str, text: str, *, sha256: str | None = None) -> None:
        """Note something wrong with ``file``: what was found and what was expected."""
        self._counts[file] += 1
        if self._counts[file] <= _PER_FILE:
            self._found.append(Finding(file=file, text=text, sha256=sha256))

    def __bool__(self) -> bool:
        return bool(self._found)

    def close(self) -> tuple[Finding, ...]:
        """Return what was found."""
        more = {file: count - _PER_FILE for file, count in self._counts.items() if count > _PER_FILE}
        return (
            *self._found,
            *(Finding(file=file, text=f"and {count:,} more of these") for file, count in more.items()),
        )


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One line of the list. split: None where it is not about one split; file: with its folder."""

    dataset: str
    version: str
    split: str | None
    file: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """One version of a dataset, as its manifest says; all zero where there is none.

    bytes: of its indexes and shards. notes: what the user may want to know and is not wrong.
    """

    dataset: str
    version: str
    path: str
    splits: tuple[str, ...]
    shards: int
    records: int
    bytes: int
    verdict: Literal["ok", "incomplete", "damaged"]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a verification. seconds: how long it took."""

    root: str
    deep: bool
    seconds: float
    datasets: tuple[DatasetReport, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as it should be."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "root": self.root,
            "deep": self.deep,
            "ok": self.ok,
            "datasets": [asdict(dataset) for dataset in self.datasets],
            "problems": [asdict(problem) for problem in self.problems],
        }

    def to_text(self) -> str:
        """Return a table of the datasets, the notes, and the problems with what to do about them."""
        header = ["dataset", "version", "splits", "shards", "records", "bytes", "verdict"]
        rows = [
            [d.dataset, d.version, ", ".join(d.splits) or "-", d.shards, d.records, human_bytes(d.bytes), d.verdict]
            for d in self.datasets
        ]
        lines = [format_table(header, rows)] if rows else []
        lines += [f"note: {dataset.path}: {note}" for dataset in self.datasets for note in dataset.notes]
        lines += [f"{problem.file}: {problem.problem}" for problem in self.problems]
        if self.problems:
            names = sorted({problem.dataset for problem in self.problems})
            lines.append(f"{_count(len(self.problems), 'problem')} in {', '.join(names)}")
            lines += _advice(self.datasets, self.problems)
        else:
            shards = sum(dataset.shards for dataset in self.datasets)
            how = "every frame decoded" if self.deep else "sizes, checksums and indexes; --deep decodes every frame"
            lines.append(f"no problems in {_count(shards, 'shard')} ({how}), {human_seconds(self.seconds)}")
        return "\n".join(lines)


def _advice(datasets: Sequence[DatasetReport], problems: Sequence[Problem]) -> list[str]:
    incomplete = sorted({dataset.dataset for dataset in datasets if dataset.verdict == "incomplete"})
    damaged = sorted({problem.dataset for problem in problems} - set(incomplete))
    lines = []
    if incomplete:
        lines.append(
            f"to finish {', '.join(incomplete)}: run the same convert.run command again; it goes on where it stopped"
        )
    if damaged:
        lines.append(
            f"to repair {', '.join(damaged)}: remove the named files and run the same convert.run command again, which "
            f"makes them again; if {MANIFEST_NAME} or {QUARANTINE_NAME} is named, run it with "
            f"--datasets {','.join(damaged)} --overwrite"
        )
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
