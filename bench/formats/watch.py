"""What the processes of a measured point use over time, watched from the benchmark, not from the process that measures.

CPU and resident memory are looked at every half second. The proportional set size takes the kernel some 20 ms a
process, so it is looked at less often: at most a twentieth of the time goes into it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from bench.measure.gpu import gpu_percent, has_gpus
from bench.measure.machine import busy_seconds, proportional_set

INTERVAL = 0.5
_PSS_SHARE = 0.05
_GPU_INTERVAL = 2.0


class Watch:
    """Watches all processes below this one while a ``with`` block runs; this one is not counted.

    samples: a dict for each look, with ``t``: seconds on the monotonic clock; ``processes``: how many; ``cpu_cores``
    and ``machine_cpu_cores``: CPU time a second since the look before, of the processes and of the whole machine;
    ``rss_bytes``: sum of the resident sets; ``pss_bytes``: None where it was not looked at or the kernel does not tell;
    ``gpu_percent``: of each GPU, None without nvidia-smi or where it was not asked.
    """

    def __init__(self, interval: float = INTERVAL) -> None:
        self.samples: list[dict[str, Any]] = []
        self._interval = interval
        self._gpu = has_gpus()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        here = psutil.Process()
        before: dict[int, float] = {}
        last, busy = time.monotonic(), busy_seconds()
        next_pss = next_gpu = last
        while not self._stop.wait(self._interval):
            cpu, rss, pids = {}, 0, []
            for process in here.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    cpu[process.pid] = times.user + times.system
                    rss += process.memory_info().rss
                    pids.append(process.pid)
            now, busy_now = time.monotonic(), busy_seconds()
            used = sum(value - before.get(pid, 0.0) for pid, value in cpu.items())
            sample: dict[str, Any] = {
                "t": now,
                "processes": len(pids),
                "cpu_cores": used / (now - last),
                "machine_cpu_cores": (busy_now - busy) / (now - last),
                "rss_bytes": rss,
                "pss_bytes": None,
                "gpu_percent": None,
            }
            before, last, busy = cpu, now, busy_now
            if now >= next_pss:
                known = [value for value in map(proportional_set, pids) if value is not None]
                sample["pss_bytes"] = sum(known) if known and len(known) == len(pids) else None
                next_pss = now + (time.monotonic() - now) / _PSS_SHARE
            if self._gpu and now >= next_gpu:
                sample["gpu_percent"] = gpu_percent()
                next_gpu = now + _GPU_INTERVAL
            self.samples.append(sample)


def summarise_watch(samples: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was watched while a point was measured.

    Args:
        samples: of ``Watch``.
        measured: with ``began`` and ``ended`` on the same clock, and ``pss_bytes`` of a look at the end.

    Returns:
        peak_pss_bytes, peak_rss_bytes: from the start of the process on. gpu_percent: mean over GPUs and looks during
        the steps, None if there is none.
    """
    pss = [*(sample["pss_bytes"] for sample in samples), measured.get("pss_bytes")]
    uses = [sample["gpu_percent"] for sample in samples if phase(sample["t"], measured) == "measured"]
    percents = [value for use in uses if use for value in use]
    return {
        "peak_pss_bytes": max((value for value in pss if value is not None), default=None),
        "peak_rss_bytes": max((sample["rss_bytes"] for sample in samples), default=None),
        "gpu_percent": sum(percents) / len(percents) if percents else None,
    }


def phase(t: float, measured: Mapping[str, Any] | None) -> str:
    """Return ``start``, ``measured`` or ``end``: where a time lies; ``failed`` if there is no measurement."""
    if measured is None:
        return "failed"
    return "start" if t < measured["began"] else "measured" if t <= measured["ended"] else "end"


def append_log(
    path: Path, samples: Sequence[Mapping[str, Any]], *, repeat: int, measured: Mapping[str, Any] | None
) -> None:
    """Append the looks of one repeat to a resource log, a line of JSON each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for sample in samples:
            line = {"repeat": repeat, "phase": phase(sample["t"], measured), **sample}
            file.write(json.dumps(line) + "\n")
