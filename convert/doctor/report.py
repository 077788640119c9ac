"""What ``convert.doctor`` found, told in the terminal and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convert.doctor.dataset import DatasetReport
from convert.doctor.rules import SEVERITIES, Finding, Severity
from convert.report import format_table, human_seconds
from stream.storage.arguments import printable

_TEXT = 60
"""Letters of an instruction in a line."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All datasets that were looked at. frames, seed: of the options; seconds: how long it took."""

    root: str
    frames: int
    seed: int
    seconds: float
    datasets: tuple[DatasetReport, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all datasets."""
        return tuple(finding for dataset in self.datasets for finding in dataset.findings)

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(dataset.count(severity) for dataset in self.datasets)

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "root": self.root,
            "frames": self.frames,
            "seed": self.seed,
            **{f"{severity}s": self.count(severity) for severity in SEVERITIES},
            "datasets": [
                {
                    "dataset": dataset.dataset,
                    "version": dataset.version,
                    "splits": list(dataset.splits),
                    "episodes": dataset.episodes,
                    "records": dataset.records,
                    "pairs_looked_at": dataset.pairs,
                    "pairs_frozen": dataset.frozen,
                    **{f"{severity}s": dataset.count(severity) for severity in SEVERITIES},
                }
                for dataset in self.datasets
            ],
            "findings": [finding.to_json() for finding in self.findings],
        }

    def to_text(self) -> str:
        """Return a table of the datasets, the findings with examples, and a line that sums it up."""
        rows: list[list[object]] = [
            [
                dataset.dataset,
                ", ".join(dataset.splits) or "-",
                dataset.episodes,
                dataset.records,
                dataset.pairs,
                frozen_share(dataset),
                *(dataset.count(severity) for severity in SEVERITIES),
            ]
            for dataset in self.datasets
        ]
        header = ["dataset", "splits", "episodes", "pairs", "looked at", "frozen", *(f"{s}s" for s in SEVERITIES)]
        lines = [format_table(header, rows)]
        for severity in SEVERITIES:
            for finding in self.findings:
                if finding.rule.severity == severity:
                    lines += ["", *_tell(finding)]
        lines += ["", self.summary()]
        return "\n".join(lines)

    def summary(self) -> str:
        """One line: what was looked at and how much was found."""
        found = ", ".join(_count(self.count(severity), severity) for severity in SEVERITIES)
        pairs = sum(dataset.pairs for dataset in self.datasets)
        return (
            f"{found} in {_count(len(self.datasets), 'dataset')}: all indexes and {pairs:,} pairs of frames, "
            f"{human_seconds(self.seconds)}"
        )


def title(finding: Finding) -> str:
    """Return one line about a finding: where, which rule, how often, and what it means."""
    where = f"{finding.dataset} {finding.split}" if finding.split else finding.dataset
    unit = finding.rule.unit if finding.count != 1 else finding.rule.unit.removesuffix("s")
    return f"{where}: {finding.rule.name}, {finding.count:,} {unit}: {finding.rule.meaning}"


def frozen_share(dataset: DatasetReport) -> str:
    """Return the share of frozen pairs among those that were looked at."""
    return f"{dataset.frozen / dataset.pairs:.0%}" if dataset.pairs else "-"


def _tell(finding: Finding) -> list[str]:
    lines = [f"{finding.rule.severity}: {title(finding)}"]
    for example in finding.examples:
        said = printable(example.instruction, latin=True)
        said = f" ({said[:_TEXT]}{'...' if len(said) > _TEXT else ''})" if said else ""
        lines.append(f"  {example.place}: {printable(example.text, latin=True)}{said}")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
