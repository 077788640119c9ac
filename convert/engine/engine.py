"""Engines that do the jobs of a conversion: Beam, the default, or Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from convert.engine.work import Counts, Job
from convert.plan import DatasetPlan

EngineName = Literal["beam", "ray"]
MODULES: Mapping[EngineName, str] = {"beam": "beam_jobs.engine", "ray": "convert.engine.ray"}
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

        ``progress`` is entered once workers can start, while they work.

        Raises:
            UsageError: The engine cannot be started; nothing was entered.
            ConvertError: A job or the engine failed.
        """
