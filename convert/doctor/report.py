"""Result of ``convert.doctor`` as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convert.doctor.dataset import DatasetReport
from convert.doctor.findings import Finding
from convert.doctor.rules import SEVERITIES, Severity
from convert.report import format_table, human_seconds
from convert.verify.report import count_noun
from stream.storage.arguments import printable

HEADER = ("dataset", "splits", "episodes", "pairs", "looked at", "frozen", *(f"{severity}s" for severity in SEVERITIES))
_TEXT = 60
"""Letters of an instruction in a line."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All datasets that were looked at; ``seconds`` is the time that it took."""

    root: str
    frames: int
    seed: int
    seconds: float
    datasets: Sequence[DatasetReport]

    @property
    def findings(self) -> list[Finding]:
        """Findings of all datasets."""
        return [finding for dataset in self.datasets for finding in dataset.findings]

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return _severities(self.findings)[f"{severity}s"]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``--json``."""
        return {
            "root": self.root,
            "frames": self.frames,
            "seed": self.seed,
            **_severities(self.findings),
            "datasets": [
                {
                    "dataset": dataset.dataset,
                    "version": dataset.version,
                    "splits": list(dataset.splits),
                    **dataset.counts(),
                    **_severities(dataset.findings),
                }
                for dataset in self.datasets
            ],
            "findings": [
                {"dataset": dataset.dataset, "version": dataset.version, **finding.to_json()}
                for dataset in self.datasets
                for finding in dataset.findings
            ],
        }

    def to_text(self) -> str:
        """Return a table of the datasets, the findings with examples, and a summary."""
        lines = [format_table(HEADER, [table_row(dataset) for dataset in self.datasets])]
        for severity in SEVERITIES:
            for dataset in self.datasets:
                for finding in dataset.findings:
                    if finding.rule.severity == severity:
                        lines += ["", *_describe(dataset.dataset, finding)]
        return "\n".join([*lines, "", self.summary()])

    def summary(self) -> str:
        """Return one line about what was looked at and how much was found."""
        found = ", ".join(count_noun(self.count(severity), severity) for severity in SEVERITIES)
        pairs = sum(dataset.total.pairs for dataset in self.datasets)
        return (
            f"{found} in {count_noun(len(self.datasets), 'dataset')}: all indexes and {pairs:,} pairs of frames, "
            f"{human_seconds(self.seconds)}"
        )


def table_row(dataset: DatasetReport) -> list[str | int]:
    """Return the cells of a dataset below ``HEADER``."""
    counts = dataset.counts()
    pairs, frozen = counts["pairs_looked_at"], counts["pairs_frozen"]
    return [
        dataset.dataset,
        ", ".join(dataset.splits) or "-",
        counts["episodes"],
        counts["records"],
        pairs,
        f"{frozen / pairs:.0%}" if pairs else "-",
        *_severities(dataset.findings).values(),
    ]


def _severities(findings: Sequence[Finding]) -> dict[str, int]:
    found = [finding.rule.severity for finding in findings]
    return {f"{severity}s": found.count(severity) for severity in SEVERITIES}


def _describe(dataset: str, finding: Finding) -> list[str]:
    rule, where = finding.rule, f"{dataset} {finding.split or ''}".rstrip()
    unit = rule.unit if finding.count != 1 else rule.unit.removesuffix("s")
    lines = [f"{rule.severity}: {where}: {rule.name}, {finding.count:,} {unit}: {rule.meaning}"]
    for example in finding.examples:
        said = printable(example.instruction, latin=True)
        said = f" ({said[:_TEXT]}{'...' if len(said) > _TEXT else ''})" if said else ""
        lines.append(f"  {example.place}: {printable(example.text, latin=True)}{said}")
    return lines
