"""Findings of ``pairstream doctor``, which runs as a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.episodes import EpisodeTable
from stream.base.errors import StreamError
from stream.storage.remote import CachedRoot

_GRACE_S = 3


@dataclass(frozen=True)
class FindingExample:
    """An example of a finding.

    Attributes:
        text: Sentence with the mistake and its location.
        instruction: Instruction of the episode.
        episode: Number of the episode in the split, or None if the example is not an episode of the split.
        step: Step of the episode.
    """

    text: str
    instruction: str
    episode: int | None
    step: int


@dataclass(frozen=True)
class Finding:
    """All matches of a rule in a split.

    Attributes:
        dataset: Name of the dataset.
        split: Name of the split, or empty if the finding concerns the whole dataset.
        rule: Name of the rule.
        severity: ``error``, ``warning`` or ``hint``.
        meaning: Meaning of the rule.
        count: Number of matches, with its unit.
        examples: Examples.
    """

    dataset: str
    split: str
    rule: str
    severity: str
    meaning: str
    count: str
    examples: tuple[FindingExample, ...]


@dataclass(eq=False)
class Doctor:
    """The newest run of ``pairstream doctor``.

    Attributes:
        root: Root.
        findings: Findings of the examined datasets.
        looked_at: Names of the examined datasets.
        error: Error message of the last run, or empty.
        began: Time when the run in progress began, or None.
        tasks: Runs in progress, kept alive by this reference.
    """

    root: BrowsedRoot
    findings: list[Finding] = field(default_factory=list)
    looked_at: set[str] = field(default_factory=set)
    error: str = ""
    began: float | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _process: asyncio.subprocess.Process | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds since the run in progress began, or None."""
        return None if self.began is None else time.monotonic() - self.began

    async def run(self, dataset_names: list[str]) -> None:
        """Look for mistakes in some datasets, and replace their findings; do nothing while a run is in progress."""
        if self.began is not None:
            return
        self.began, self.error = time.monotonic(), ""
        try:
            command = doctor_command(self.root.catalog.location, dataset_names)
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            report_json, error_output = await self._process.communicate()
            report = read_report(report_json, error_output)
            new_findings = await asyncio.to_thread(read_findings, self.root, report)
            earlier_findings = [finding for finding in self.findings if finding.dataset not in dataset_names]
            self.findings = earlier_findings + new_findings
            self.looked_at |= set(dataset_names)
        except (StreamError, OSError) as error:
            self.error = str(error)
        finally:
            self.began, self._process = None, None

    async def stop(self) -> None:
        """End the run in progress."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _GRACE_S)
            except TimeoutError:
                process.kill()

    def findings_of(self, dataset: str, split: str) -> list[Finding]:
        """Return the findings of a split, and the findings that concern its whole dataset."""
        return [finding for finding in self.findings if finding.dataset == dataset and finding.split in ("", split)]


def doctor_command(root: Path | CachedRoot, dataset_names: list[str]) -> list[str]:
    """Return the command that looks for mistakes in some datasets."""
    num_jobs, names = str(min(len(dataset_names), os.cpu_count() or 1)), ",".join(dataset_names)
    command = [sys.executable, "-m", "pairstream", "doctor", str(root)]
    return [*command, "--json", "--jobs", num_jobs, "--datasets", names]


def read_report(report_json: bytes, error_output: bytes) -> dict[str, Any]:
    """Return the report of a run; raise StreamError with its last line of error output if it has none."""
    try:
        report: dict[str, Any] = json.loads(report_json)
    except ValueError:
        error_lines = error_output.decode(errors="replace").strip().splitlines() or ["it ended without a word"]
        raise StreamError(f"pairstream doctor: {error_lines[-1].removeprefix('error: ')}") from None
    return report


def read_findings(root: BrowsedRoot, report: dict[str, Any]) -> list[Finding]:
    """Return the findings of a report, the worst first, with the episodes that their examples name."""
    findings = []
    for entry in report["findings"]:
        dataset, split = entry["dataset"], entry["split"] or ""
        table = _table(root, dataset, split)
        examples = tuple(_read_example(example, table) for example in entry["examples"])
        rule, severity, count = entry["rule"], entry["severity"], f"{entry['count']:,} {entry['unit']}"
        findings.append(Finding(dataset, split, rule, severity, entry["meaning"], count, examples))
    severities = ["error", "warning", "hint"]
    return sorted(findings, key=lambda finding: severities.index(finding.severity))


def _table(root: BrowsedRoot, dataset: str, split: str) -> EpisodeTable | None:
    try:
        return root.table(dataset, split) if split else None
    except (StreamError, ValueError, OSError):
        return None


def _read_example(example: dict[str, Any], table: EpisodeTable | None) -> FindingExample:
    file, position, step = example["source_file"], example["source_position"], example["step"]
    episode = table.find_source(file, position) if table is not None and file is not None else None
    context = example["file"] or (f"{file} #{position}" if file is not None else example["shard"])
    context = " ".join(piece for piece in (context, f"step {step}" if step is not None else None) if piece)
    repetitions = f" ({example['count']:,} of these)" if example["count"] > 1 else ""
    text = f"{context + ': ' if context else ''}{example['text']}{repetitions}"
    return FindingExample(text, example["instruction"], episode, step or 0)
