"""Fresh processes for measured points: a line of JSON in, a line out, and an end when the benchmark ends.

The benchmark calls ``ask``. The module that it starts calls ``answer`` under its main guard.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

_GRACE = 10.0
_REPOSITORY = str(Path(__file__).resolve().parents[2])


class ChildFailed(RuntimeError):
    """A process that ended without a result; the message says how and quotes the last line of its output."""


def ask(
    module: str, request: Mapping[str, Any], *, python: str | Path = sys.executable, timeout: float | None = None
) -> dict[str, Any]:
    """Run ``python -m module`` and return what its ``answer`` gives for a request.

    Args:
        module: A module of this repository.
        request: Request, sent as JSON.
        python: Interpreter, for example of another virtual environment.
        timeout: Seconds after which the process is ended.

    Returns:
        The result, and ``exit_s``: seconds from the result to the end of the process.

    Raises:
        ChildFailed: The process raised, died, or took too long.
        KeyboardInterrupt: The process is ended first.
    """
    paths = [_REPOSITORY, *filter(None, [os.environ.get("PYTHONPATH")])]
    late = threading.Event()
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [str(python), "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # Ctrl-C reaches this process alone, which then ends the child and its workers in order.
            process_group=0,
        )

        def stop() -> None:
            late.set()
            process.terminate()

        timer = threading.Timer(timeout, stop) if timeout else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        assert process.stdin is not None and process.stdout is not None
        line, told_at = "", 0.0
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(dict(request)) + "\n")
                process.stdin.flush()
                # Not `communicate`: closing the input would end the child.
                line = process.stdout.readline()
            told_at = time.perf_counter()
            process.wait()
            ended_at = time.perf_counter()
        finally:
            if timer is not None:
                timer.cancel()
            end(process)
        log.seek(0)
        told = [text.strip() for text in log.read().splitlines() if text.strip()]
    result = _read(line)
    if process.returncode == 0 and result and "error" not in result:
        return {**result, "exit_s": ended_at - told_at}
    if late.is_set():
        raise ChildFailed(f"took longer than {timeout:.0f} s")
    reason = result.get("error") or f"{_fate(process.returncode)}{f': {told[-1]}' if told else ''}"
    raise ChildFailed(" ".join(str(reason).split()))


def answer(function: Callable[[dict[str, Any]], Mapping[str, Any]]) -> int:
    """Answer one request of ``ask`` with the result of a function and return the exit code.

    An exception becomes the error that ``ask`` raises. The process ends when standard input closes, so it never
    outlives the benchmark. Output of libraries to standard output goes to standard error.
    """
    signal.signal(signal.SIGTERM, _stop)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        result: Mapping[str, Any] = function(request)
    except Exception as error:
        # The benchmark prints one line; the traceback is for those who run the module by hand.
        sys.excepthook(type(error), error, error.__traceback__)
        result = {"error": f"{type(error).__name__}: {error}"}
    out.write(json.dumps(result) + "\n")
    out.flush()
    return 1 if "error" in result else 0


def end(process: subprocess.Popen[Any]) -> None:
    """End a process if it still runs, and close its pipes."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _read(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _fate(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}{', as the kernel does when memory runs out' if -code == signal.SIGKILL else ''}"


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
