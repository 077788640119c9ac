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
from stream.base.errors import StreamError
from stream.storage.remote import CachedRoot

Finding = dict[str, Any]
"""A finding of ``pairstream doctor --json``, as ``read_findings`` returns it."""
FindingExample = dict[str, Any]
"""An example of a finding; ``episode`` is its number in the split, or None, and ``text`` names its location too."""


@dataclass(eq=False)
class Doctor:
    """The newest run of ``pairstream doctor``.

    Attributes:
        root: Root.
        findings: Findings of the examined datasets.
        looked_at: Names of the examined datasets.
        error: Error message of the last run, or empty.
        began: Time when the run in progress began, or None.
    """

    root: BrowsedRoot
    findings: list[Finding] = field(default_factory=list)
    looked_at: set[str] = field(default_factory=set)
    error: str = ""
    began: float | None = None
    _process: asyncio.subprocess.Process | None = None

    async def run(self, dataset_names: list[str]) -> None:
        """Look for mistakes in some datasets, and replace their findings; do nothing while a run is in progress."""
        if self.began is not None:
            return
        self.began, self.error = time.monotonic(), ""
        try:
            command = doctor_command(self.root.catalog.location, dataset_names)
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
            report = read_report(*await self._process.communicate())
            new_findings = await asyncio.to_thread(read_findings, self.root, report)
            earlier_findings = [finding for finding in self.findings if finding["dataset"] not in dataset_names]
            self.findings = earlier_findings + new_findings
            self.looked_at |= set(dataset_names)
        except (StreamError, OSError) as error:
            self.error = str(error)
        finally:
            self.began, self._process = None, None

    def stop(self) -> None:
        """End the run in progress."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def findings_of(self, dataset: str, split: str) -> list[Finding]:
        """Return the findings of a split, and the findings that concern its whole dataset."""
        return [
            finding for finding in self.findings if finding["dataset"] == dataset and finding["split"] in (None, split)
        ]


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
    for finding in report["findings"]:
        for example in finding["examples"]:
            file, position, step = example["source_file"], example["source_position"], example["step"]
            context = example["file"] or (f"{file} #{position}" if file is not None else example["shard"])
            context = " ".join(piece for piece in (context, f"step {step}" if step is not None else None) if piece)
            repetitions = f" ({example['count']:,} of these)" if example["count"] > 1 else ""
            example["text"] = f"{context + ': ' if context else ''}{example['text']}{repetitions}"
            example["step"] = step or 0
            example["episode"] = None
            if finding["split"] and file is not None:
                with contextlib.suppress(StreamError, ValueError, OSError):
                    table = root.table(finding["dataset"], finding["split"])
                    example["episode"] = table.find_source(file, position)
    severities = ["error", "warning", "hint"]
    return sorted(report["findings"], key=lambda finding: severities.index(finding["severity"]))
