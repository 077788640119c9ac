"""``python -m tests.faults.soak``: stream for an hour with workers killed, states set and evaluation loops in between.

Every ``--event-every`` seconds a random event happens to the run: a worker is killed, or stopped and continued; the
iterator is rebuilt from its state; the loader is new; the state of a random step up to 10^8 is set; an evaluation loop
runs. With ``--remote`` the root is read in place, the store is stopped and started, and the cache is damaged, deleted,
and its disk filled. Before each event, memory of all processes is recorded, and batches since the last event are
compared by hash with those of a new loader in a fresh process. The slope of memory is that of the second half, without
mapped files: their share depends on other programs that use the same libraries. The exit code is 1 if a batch differed,
memory grew (by more than three standard errors of the slope, and 1 MB an hour), or something was left behind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import statistics
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.measure.child import ask
from bench.measure.command import Command, Output, Result, say, work_folder
from bench.measure.machine import MemoryLog, own_set, slope
from bench.measure.options import number, option
from bench.measure.tables import markdown_table, new_figure, save_figure
from bench.remote import WebServer, served
from stream import WorkerError, digest, make_loader
from stream.base.arguments import whole_number
from stream.base.errors import StreamError
from stream.base.progress import human_seconds
from stream.cache.quota import sparse_copies
from tests.fixtures.command import wait_until

RESULT_FILE = "soak.json"
CHECKED = 24
"""Batches between two events to compare with a fresh loader: the first and last few, and random others."""
_ENDS = 4
_FARTHEST = 10**8
_PAUSE_S = 1.0
_GONE_S = 5.0
_MORE_HANDLES = 8
_FEWEST = 20
"""Samples of memory below which growth is not judged."""
_WARM_UP = 0.5
"""Share of memory samples at the start that the slope leaves out: shards are opened, pools fill."""
_MOST_TOLD = 10
_CACHE = "60MB"
"""Bound of the cache of a root that is read in place, a third of the demo's data."""
_DISK = "120m"
"""Size of the disk of such a cache, a memory file system, where this process may mount one."""
_STOPPED_S = 5
"""Seconds for which the store is stopped, or the disk is full."""


@dataclass(frozen=True, kw_only=True)
class SoakOptions(Output):
    minutes: float = option(60, number(1e-9), "time to run")
    root: str = option("build/demo/oxe", str, "converted data")
    mixture: str = option("oxe29", str, "name of a mixture or dataset, or a YAML file")
    val_steps: int = option(20, whole_number(1), "batches of an evaluation loop")
    batch_size: int = option(32, whole_number(1), "rows of a batch")
    num_workers: int = option(2, whole_number(1), "worker processes")
    event_every: float = option(15, number(1e-9), "seconds between events", metavar="S")
    seed: int = option(0, whole_number(0), "seed of samples and events")
    remote: bool = option(
        False, bool, "read in place from nginx, which is stopped, with a cache that is damaged, deleted and full"
    )


class Soak:
    """A run of the loader for some time; ``result`` has the findings."""

    def __init__(self, options: SoakOptions, *, server: WebServer | None = None, cache: Path | None = None) -> None:
        names = ("root", "mixture", "batch_size", "num_workers", "seed")
        self._train = {"split": "train", **{name: getattr(options, name) for name in names}}
        # What batches are compared with comes from the disk.
        self._fresh = dict(self._train)
        self._server, self._cache = server, cache
        if server is not None:
            self._train |= {"root": server.url, "cache": f"{cache}:{_CACHE}"}
        self._val = {**self._train, "split": "val", "num_workers": 1, "num_steps": options.val_steps}
        self._seconds, self._event_every = options.minutes * 60, options.event_every
        self._random = random.Random(options.seed)
        self._memory, self._own = MemoryLog(None), MemoryLog(None, measure=own_set)
        self._times: list[float] = []
        self._handles: list[int] = []
        self._events: Counter[str] = Counter()
        self._recovery: defaultdict[str, list[float]] = defaultdict(list)
        self._problems: list[str] = []
        self._seen: dict[int, str] = {}
        self._batches = self._checked = 0
        self._val_digest: str | None = None
        self._loader = make_loader(**self._train)
        self._iterator = iter(self._loader)
        self._began = time.monotonic()
        self._kinds = {
            "worker killed": self._kill_worker,
            "worker stopped, continued": self._stop_worker,
            "iterator rebuilt from its state": self._rebuild,
            "new loader": self._renew,
            "state of a random step set": self._seek,
            "evaluation loop": self._evaluate,
        }
        if server is not None:
            self._kinds |= {
                "store stopped, started": self._stop_store,
                "cache damaged": self._damage,
                "cache deleted": self._delete,
            }
            if cache is not None and cache.is_mount():
                self._kinds["disk filled, emptied"] = self._fill

    def run(self) -> None:
        waiting: list[str] = []
        try:
            while self._elapsed() < self._seconds:
                end = min(self._elapsed() + self._event_every, self._seconds)
                while self._elapsed() < end:
                    self._next()
                self._look()
                self._check()
                if not waiting:
                    waiting = self._random.sample(sorted(self._kinds), len(self._kinds))
                kind = waiting.pop()
                self._events[kind] += 1
                began = time.monotonic()
                self._kinds[kind]()
                self._next()
                self._recovery[kind].append(time.monotonic() - began)
                megabytes = (self._own.totals[-1] or 0) / 1e6
                say(f"{self._elapsed() / 60:.1f} min, {self._batches:,} batches, {megabytes:,.0f} MB; {kind}")
            self._check()
        except StreamError as error:
            self._problems.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
        finally:
            self._iterator.close()
        gc.collect()
        if not wait_until(lambda: not _workers(), seconds=_GONE_S, poll=0.05):
            self._problems.append(f"worker processes left: {[worker.pid for worker in _workers()]}")

    @property
    def result(self) -> dict[str, Any]:
        """Return the findings for JSON; ``problems`` is empty if all is well."""
        skipped = int(len(self._times) * _WARM_UP)
        totals, own_memory = ([total or 0 for total in log.totals] for log in (self._memory, self._own))
        rise, error = (value and value * 3600 for value in slope(self._times[skipped:], own_memory[skipped:]))
        problems = list(self._problems)
        if len(totals) >= _FEWEST and rise is not None and error is not None:
            if rise > max(3 * error, 1e6):
                problems.append(f"memory grows by {rise / 1e6:.1f} MB an hour, standard error {error / 1e6:.1f}")
            # Some states give the ring a few more slots; it must not grow further.
            first, last = max(self._handles[: len(totals) // 2]), self._handles[-1]
            if last > first + _MORE_HANDLES:
                problems.append(f"open files of the trainer: at most {first} in the first half, {last} at last")
        samples = zip(self._times, totals, own_memory, self._handles, strict=True)
        return {
            "seconds": self._elapsed(),
            "batches": self._batches,
            "samples": self._batches * self._loader.batch_size,
            "checked": self._checked,
            "events": dict(sorted(self._events.items())),
            "recovery_s": {
                kind: {"median": statistics.median(seconds), "max": max(seconds)}
                for kind, seconds in sorted(self._recovery.items())
            },
            "memory": {
                **{key: value for key, value in self._memory.summary().items() if key.endswith("_pss_bytes")},
                "final_own_bytes": own_memory[-1] if own_memory else None,
                "slope_bytes_per_hour": rise,
                "slope_error_per_hour": error,
                "left_out_samples": skipped,
                "over_time": [[round(at, 1), *figures] for at, *figures in samples],
            },
            "problems": problems,
        }

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _next(self) -> None:
        step = self._iterator.step
        batch_digest = digest(next(self._iterator))
        self._batches += 1
        # A repeated step must give the same batch.
        if self._seen.setdefault(step, batch_digest) != batch_digest:
            self._problems.append(f"step {step} gave {self._seen[step][:16]}, then {batch_digest[:16]}")

    def _look(self) -> None:
        self._memory.look(self._batches)
        self._own.look(self._batches)
        self._times.append(self._elapsed())
        self._handles.append(len(os.listdir("/proc/self/fd")))

    def _check(self) -> None:
        steps = list(self._seen)
        chosen = {*steps[:_ENDS], *steps[-_ENDS:]}
        chosen.update(self._random.sample(steps, min(len(steps), CHECKED - 2 * _ENDS)))
        if chosen:
            self._problems += differences(self._fresh, {step: self._seen[step] for step in chosen})
            self._checked += len(chosen)
        self._seen.clear()

    def _kill_worker(self) -> None:
        self._random.choice(_workers()).kill()
        state = self._iterator.get_state()
        for _ in range(20):
            try:
                state = self._iterator.get_state()
                self._next()
            except WorkerError:
                break
        else:
            self._problems.append("a worker was killed and 20 batches came without an error")
        if self._iterator.get_state() != state:
            self._problems.append(f"the error moved the state from {state} to {self._iterator.get_state()}")
        self._iterator.set_state(state)

    def _stop_worker(self) -> None:
        worker = self._random.choice(_workers())
        worker.suspend()
        time.sleep(_PAUSE_S)
        worker.resume()

    def _stop_store(self) -> None:
        assert self._server is not None
        self._server.stop()
        timer = threading.Timer(_STOPPED_S, self._server.start)
        timer.start()
        while timer.is_alive():
            self._next()
        timer.join()

    def _damage(self) -> None:
        for path in self._copies():
            with path.open("r+b") as file:
                match self._random.randrange(3):
                    case 0:
                        file.truncate(path.stat().st_size // 2)
                    case 1:
                        file.write(self._random.randbytes(path.stat().st_size // 3))
                    case _:
                        path.unlink()

    def _fill(self) -> None:
        assert self._cache is not None
        filler = self._cache / "filler"
        for _ in range(2):
            # Again after the copies are gone: nothing that comes now can be kept.
            self._delete()
            with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << 20))
        end = self._elapsed() + _STOPPED_S
        while self._elapsed() < end:
            self._next()
        filler.unlink()

    def _delete(self) -> None:
        for path in self._copies():
            path.unlink()

    def _copies(self) -> list[Path]:
        assert self._cache is not None
        return list(sparse_copies(self._cache))

    def _rebuild(self) -> None:
        state = self._iterator.get_state()
        self._iterator = iter(self._loader)
        self._iterator.set_state(state)

    def _renew(self) -> None:
        state = self._iterator.get_state()
        self._iterator.close()
        self._loader = make_loader(**self._train)
        self._iterator = iter(self._loader)
        self._iterator.set_state(state)

    def _seek(self) -> None:
        self._iterator.set_state(self._loader.state_at(self._random.randrange(_FARTHEST)))

    def _evaluate(self) -> None:
        digests = "".join(digest(batch) for batch in make_loader(**self._val))
        self._val_digest = self._val_digest or digests
        if digests != self._val_digest:
            self._problems.append("an evaluation loop had other batches than the first one")


def _workers() -> list[psutil.Process]:
    workers = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "stream.worker" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                workers.append(process)
    return workers


def differences(loader: Mapping[str, Any], seen: Mapping[int, str]) -> list[str]:
    """Compare hashes with those of a fresh loader; return a line for each different batch, at most ten and a count."""
    fresh = fresh_digests(loader, sorted(seen))
    lines = [
        f"step {step}: batch {batch_digest[:16]}, a fresh loader's is {fresh[step][:16]}"
        for step, batch_digest in sorted(seen.items())
        if fresh[step] != batch_digest
    ]
    more = len(lines) - _MOST_TOLD
    return lines[:_MOST_TOLD] + ([f"and {more} further batches"] if more > 0 else [])


def fresh_digests(loader: Mapping[str, Any], steps: list[int]) -> dict[int, str]:
    """Return the hash of each batch, made in a fresh process; ``loader`` has the arguments of ``make_loader``."""
    answered = ask("tests.faults.soak", {"loader": dict(loader), "steps": steps}, timeout=600)
    return {int(step): hashed for step, hashed in answered["digests"].items()}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    loader = make_loader(**{**request["loader"], "num_workers": 0})
    return {"digests": {str(step): digest(loader.batch_at(step)) for step in request["steps"]}}


def _work(options: SoakOptions) -> Iterator[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        server = cache = None
        if options.remote:
            folder = stack.enter_context(work_folder("soak", options.out))
            server, cache = stack.enter_context(served(Path(options.root), folder)), folder / "cache"
            cache.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(cache)]
            if subprocess.run(mount, capture_output=True, timeout=10).returncode:
                say("no right to mount a small disk, so none is filled")
            else:
                stack.callback(lambda: subprocess.run(["umount", "-l", cache], check=True))
        soak, interrupted = Soak(options, server=server, cache=cache), False
        try:
            soak.run()
        except KeyboardInterrupt:
            interrupted = True
        yield {**soak.result, "interrupted": interrupted}


def format_result(result: Result) -> str:
    memory = result["memory"]
    rise, error = memory["slope_bytes_per_hour"], memory["slope_error_per_hour"]
    growth = "-"
    if rise is not None and error is not None:
        within = "zero within two standard errors" if abs(rise) <= 2 * error else "beyond two standard errors of zero"
        growth = f"{rise / 1e6:+.1f} MB an hour, standard error {error / 1e6:.1f}: {within}"
    peak, final = ((memory[key] or 0) / 1e6 for key in ("peak_pss_bytes", "final_pss_bytes"))
    rows = [
        ("time", human_seconds(result["seconds"])),
        ("batches, samples", f"{result['batches']:,}, {result['samples']:,}"),
        ("compared with a fresh loader's", f"{result['checked']:,} batches"),
        ("memory of all processes, peak and last", f"{peak:,.0f} MB, {final:,.0f} MB"),
        ("slope of memory without mapped files", growth),
    ]
    for kind, count in result["events"].items():
        took = result["recovery_s"].get(kind)
        recovery = f", to the next batch {took['median']:.2f} s, at most {took['max']:.2f} s" if took else ""
        rows.append((kind, f"{count:,} times{recovery}"))
    rows.append(("problems", "; ".join(result["problems"]) or "none"))
    return markdown_table(["", ""], rows, right=False)


def plot_memory(result: Result, folder: Path) -> None:
    """Draw memory over time as SVG and PNG, with the line of the reported slope."""
    memory = result["memory"]
    samples = memory["over_time"]
    times, everything, own_memory = (np.array([sample[column] for sample in samples]) for column in range(3))
    minutes, own_memory = times / 60, own_memory / 1e6
    figure, axes = new_figure(width=7, height=3.2)
    axes.plot(minutes, everything / 1e6, ".", color="0.6", label="all, with a share of mapped files")
    axes.plot(minutes, own_memory, ".", label="heap, stacks and batches")
    if memory["slope_bytes_per_hour"] is not None:
        fitted, level = minutes[memory["left_out_samples"] :], own_memory[memory["left_out_samples"] :].mean()
        axes.plot(fitted, level + memory["slope_bytes_per_hour"] / 6e7 * (fitted - fitted.mean()), "k-", linewidth=1)
    axes.set(xlabel="minutes", ylabel="MB, all processes", title="Memory of trainer and workers")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")
    save_figure(figure, folder / "soak")


COMMAND = Command(
    name="soak",
    package="tests.faults",
    about="Stream for a long time, with trouble in between.",
    options=SoakOptions,
    work=_work,
    show=format_result,
    failed=lambda result: 1 if result["problems"] else 130 if result["interrupted"] else 0,
    files=plot_memory,
    libraries=("array-record", "grain", "numpy", "psutil", "pyarrow", "simplejpeg"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
