"""Apache Beam as an engine of conversions; Beam itself is imported once it is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from convert.engine.work import Counts, Job
from convert.errors import ConvertError, ShardError, UsageError
from convert.plan import DatasetPlan
from stream.base.machine import usable_processors

if TYPE_CHECKING:
    from beam_jobs.options import RunnerChoice

_OUR_ERROR = re.compile(r"convert\.errors\.\w+: (.+)")
_BEAM_SUFFIX = re.compile(r" ?\[while running .*$", re.DOTALL)


class BeamEngine:
    """One of Beam's runners, by default processes of this machine that Beam's in-process runner starts."""

    def __init__(
        self, arguments: Sequence[str], *, address: str | None, num_workers: int | None, program_flags: Sequence[str]
    ) -> None:
        if address is not None:
            raise UsageError(f"--address {address} is the address of a Ray cluster; add --engine ray")
        self._arguments = arguments
        self._num_workers = num_workers or usable_processors()
        self._program_flags = program_flags
        # Without arguments nothing can be wrong, and commands that convert nothing start without Beam.
        choice = self._choose(self._num_workers) if arguments else None
        self.name = "Beam" if choice is None else choice.kind
        self.sees_local_paths = choice is None or not choice.is_service
        self.only_translates = choice is not None and choice.only_translates

    def run(
        self, jobs: Sequence[Job], plans: Mapping[str, DatasetPlan], *, progress: AbstractContextManager[object]
    ) -> Counts | None:
        """Do jobs by a pipeline."""
        from beam_jobs.launch import run_pipeline

        try:
            return run_pipeline(jobs, plans, self._choose(max(1, min(self._num_workers, len(jobs)))), progress=progress)
        except Exception as error:
            raise _explain(error) from error

    def _choose(self, num_workers: int) -> RunnerChoice:
        from beam_jobs.options import choose_runner

        return choose_runner(self._arguments, num_workers=num_workers, program_flags=self._program_flags)


make_engine = BeamEngine


def _explain(error: Exception) -> ConvertError:
    """Return the error with our own message: runners wrap the errors of workers in text."""
    text = str(error)
    if isinstance(error, ConvertError):
        return (UsageError if isinstance(error, UsageError) else ShardError)(_BEAM_SUFFIX.sub("", text))
    if our_error := _OUR_ERROR.search(text):
        return ShardError(_BEAM_SUFFIX.sub("", our_error[1].split("\\n")[0]).strip())
    *_, last_line = ["", *filter(str.strip, text.splitlines())]
    return ConvertError(f"the Beam runner failed: {type(error).__name__}: {last_line}")
