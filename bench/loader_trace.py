"""A timeline of what the loader's processes did, in Chrome's trace format: open it in Perfetto or chrome://tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stream.batch import Span

_TRAINER_LANE = 0


def trace_events(
    spans: Sequence[tuple[int, Span]], waits: Sequence[tuple[int, float, float]], *, trainer: int
) -> dict[str, Any]:
    """Return a trace of complete events, in microseconds from the first on.

    Args:
        spans: work of workers (or threads), each with its step.
        waits: of the trainer: step, and from when to when it waited for that batch, seconds of ``time.perf_counter``.
        trainer: its process.
    """
    starts = [span.start for _, span in spans] + [start for _, start, _ in waits]
    zero = min(starts, default=0.0)
    lanes = sorted({(span.process, span.thread) for _, span in spans})
    events: list[dict[str, Any]] = [_name("process_name", trainer, _TRAINER_LANE, "trainer")]
    events.append(_name("thread_name", trainer, _TRAINER_LANE, "waiting for data"))
    workers = sorted({process for process, _ in lanes if process != trainer})
    for number, process in enumerate(workers):
        events.append(_name("process_name", process, 0, f"worker {number}"))
    for process, thread in lanes:
        events.append(_name("thread_name", process, thread, f"thread {thread}"))
    for step, start, stop in waits:
        events.append(_event("wait", trainer, _TRAINER_LANE, start - zero, stop - start, step))
    for step, span in spans:
        events.append(_event(span.kind, span.process, span.thread, span.start - zero, span.stop - span.start, step))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _event(kind: str, process: int, thread: int, start: float, seconds: float, step: int) -> dict[str, Any]:
    place = {"pid": process, "tid": thread, "ts": round(1e6 * start, 1), "dur": round(1e6 * seconds, 1)}
    return {"name": kind, "cat": "loader", "ph": "X", **place, "args": {"step": step}}


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
