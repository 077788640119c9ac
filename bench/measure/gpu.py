"""How busy the GPU is, as ``nvidia-smi`` tells it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from types import TracebackType
from typing import IO

_INTERVAL_MS = 200
_PROGRAM = "nvidia-smi"
_QUERY = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")


def has_gpus() -> bool:
    """Say whether there is an ``nvidia-smi`` to ask."""
    return shutil.which(_PROGRAM) is not None


def gpu_percent() -> list[float] | None:
    """Return the use of each GPU in percent as nvidia-smi tells it; None if it does not."""
    try:
        done = subprocess.run([_PROGRAM, *_QUERY], capture_output=True, text=True, timeout=10, check=True)
        return [float(line) for line in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


class GpuLog:
    """Watches the utilisation of all GPUs while its ``with`` block runs; ``mean`` is None where there is none."""

    def __init__(self) -> None:
        self.mean: float | None = None
        """Mean of all readings of all GPUs, 0 to 1."""
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> GpuLog:
        if has_gpus():
            self._log = tempfile.TemporaryFile()
            command = [_PROGRAM, *_QUERY, f"--loop-ms={_INTERVAL_MS}"]
            self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.DEVNULL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None or self._log is None:
            return
        self._process.terminate()
        self._process.wait()
        self._log.seek(0)
        readings = [float(line) for line in self._log.read().decode().split() if line.replace(".", "").isdigit()]
        self._log.close()
        self.mean = sum(readings) / len(readings) / 100 if readings else None
