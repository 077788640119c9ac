"""Choice of the engine that does the jobs of a conversion: Beam, the default, or Ray."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol, cast

from convert.engine.work import Counts, Job
from convert.plan import DatasetPlan

EngineName = Literal["beam", "ray"]
_MODULES: Mapping[EngineName, str] = {"beam": "beam_jobs.engine", "ray": "convert.engine.ray"}
"""Modules with a function ``make_engine``, imported once chosen: convert does not depend on Beam or Ray."""


class Engine(Protocol):
    """Launcher of the jobs of a conversion.

    Attributes:
        name: Name for messages.
        sees_local_paths: False if no worker is on a machine of ours.
        only_translates: True if jobs are made ready for a service and not sent.
    """

    name: str
    sees_local_paths: bool
    only_translates: bool

    def run(
        self, jobs: Sequence[Job], plans: Mapping[str, DatasetPlan], *, progress: AbstractContextManager[object]
    ) -> Counts | None:
        """Do jobs, and return their counts, None if the engine has none.

        Args:
            jobs: Shards or splits.
            plans: Plans by dataset.
            progress: Context manager that is entered once workers can start, while they work.

        Raises:
            UsageError: The engine cannot be started; nothing was entered.
            ConvertError: A job or the engine failed.
        """


def make_engine(
    name: EngineName,
    *,
    arguments: Sequence[str],
    address: str | None,
    num_workers: int | None,
    program_flags: Sequence[str],
) -> Engine:
    """Return an engine.

    Args:
        name: Name of the engine.
        arguments: Options of the command line that are not the program's, for the engine.
        address: Address of a running cluster.
        num_workers: Processes on this machine, or most jobs at once on a cluster; None for the engine's default.
        program_flags: Options of the program, to suggest one for a typo.

    Raises:
        UsageError: The engine is not installed, or does not know an argument.
    """
    module = importlib.import_module(_MODULES[name])
    engine = module.make_engine(arguments, address=address, num_workers=num_workers, program_flags=program_flags)
    return cast(Engine, engine)
