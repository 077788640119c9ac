"""Findings of ``convert.doctor``, which runs as a process of its own where it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairstream.browse.episodes import EpisodeTable
from pairstream.browse.opened import Opened
from stream.base.errors import StreamError
from stream.base.extras import missing
from stream.storage.remote import CachedRoot

_GRACE_S = 3


@dataclass(frozen=True)
class Place:
    """An example of a finding.

    Attributes:
        text: Sentence about what was found, and where.
        instruction: Instruction of the episode.
        episode: Number of the episode in the split, or None if the example is no episode of it.
        step: Step of the episode.
    """

    text: str
    instruction: str
    episode: int | None
    step: int


@dataclass(frozen=True)
class Finding:
    """All that a rule found in a split.

    Attributes:
        dataset, split: Names; the split is empty if the finding concerns the dataset.
        rule, severity: Name of the rule; ``error``, ``warning`` or ``hint``.
        meaning: Meaning of the rule.
        count: How often, with its unit.
        places: Examples.
    """

    dataset: str
    split: str
    rule: str
    severity: str
    meaning: str
    count: str
    places: tuple[Place, ...]


@dataclass(eq=False)
class Doctor:
    """The newest run of ``pairstream doctor``.

    Attributes:
        opened: Root.
        findings: Findings of the datasets that were looked at.
        looked_at: Names of these datasets.
        error: Sentence of the last run that failed, or empty.
        began: Time when the run in progress began, or None.
        tasks: Runs in progress, which nothing else holds.
    """

    opened: Opened
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

    async def run(self, datasets: list[str]) -> None:
        """Look at some datasets and replace their earlier findings; does nothing while another run is in progress."""
        if self.began is not None:
            return
        self.began, self.error = time.monotonic(), ""
        try:
            command = doctor_command(self.opened.catalog.place, datasets)
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            output, said = await self._process.communicate()
            report = read_report(output, said)
            found = await asyncio.to_thread(read_findings, self.opened, report)
            self.findings = [each for each in self.findings if each.dataset not in datasets] + found
            self.looked_at |= set(datasets)
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

    def of(self, dataset: str, split: str) -> list[Finding]:
        """Return the findings of a split, and those of all of its dataset."""
        return [each for each in self.findings if each.dataset == dataset and each.split in ("", split)]


def doctor_command(root: Path | CachedRoot, datasets: list[str]) -> list[str]:
    """Return the command that looks at some datasets; raise StreamError where ``convert`` is not installed."""
    if importlib.util.find_spec("convert") is None:
        raise StreamError(missing("convert.doctor", "convert", by="This page"))
    jobs = str(min(len(datasets), os.cpu_count() or 1))
    names = ",".join(datasets)
    return [sys.executable, "-m", "convert.doctor", str(root), "--json", "--jobs", jobs, "--datasets", names]


def read_report(output: bytes, said: bytes) -> dict[str, Any]:
    """Return the report of a run; raise StreamError with the last line that it said if it gave none."""
    try:
        report: dict[str, Any] = json.loads(output)
    except ValueError:
        lines = said.decode(errors="replace").strip().splitlines() or ["it ended without a word"]
        raise StreamError(f"convert.doctor: {lines[-1].removeprefix('error: ')}") from None
    return report


def read_findings(opened: Opened, report: dict[str, Any]) -> list[Finding]:
    """Return the findings of a report, the worst first, with the episodes that their examples name."""
    found = []
    for each in report["findings"]:
        dataset, split = each["dataset"], each["split"] or ""
        table = _table(opened, dataset, split)
        places = tuple(_place(example, table) for example in each["examples"])
        count = f"{each['count']:,} {each['unit']}"
        found.append(Finding(dataset, split, each["rule"], each["severity"], each["meaning"], count, places))
    order = ["error", "warning", "hint"]
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _table(opened: Opened, dataset: str, split: str) -> EpisodeTable | None:
    try:
        return opened.table(dataset, split) if split else None
    except (StreamError, ValueError, OSError):
        return None


def _place(example: dict[str, Any], table: EpisodeTable | None) -> Place:
    source, position, step = example["source_file"], example["source_position"], example["step"]
    episode = table.find_source(source, position) if table is not None and source is not None else None
    where = example["file"] or (f"{source} #{position}" if source is not None else example["shard"])
    where = " ".join(part for part in (where, f"step {step}" if step is not None else None) if part)
    alike = f" ({example['count']:,} of these)" if example["count"] > 1 else ""
    return Place(f"{where + ': ' if where else ''}{example['text']}{alike}", example["instruction"], episode, step or 0)
