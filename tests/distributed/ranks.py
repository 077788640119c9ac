"""Processes that train together, started for real: one command a rank, each in a session of its own."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.measure.ports import free_port
from stream import digest
from tests.fixtures.command import Command, Result, is_alive, start, wait_until

Batch = Mapping[str, Any]


@contextlib.contextmanager
def start_ranks(program: str, world_size: int, **task: Any) -> Iterator[list[Command]]:
    """Start ``tests.distributed.<program>`` once a rank; at the end of the block all that is left of them is killed.

    A rank is told its task, with ``rank``, ``world_size``, ``store`` (a file for torch to meet at) and ``address`` (for
    JAX), as JSON.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        common = {"world_size": world_size, "store": f"{folder}/store", "address": free_address(), **task}
        task_lines = [json.dumps({"rank": rank, **common}) for rank in range(world_size)]
        yield [stack.enter_context(start(text, module=f"tests.distributed.{program}")) for text in task_lines]


def run_ranks(program: str, world_size: int, **task: Any) -> list[list[dict[str, Any]]]:
    """Run ranks to their end; returns what each told, a JSON object a line."""
    with start_ranks(program, world_size, **task) as ranks:
        results = [rank.wait() for rank in ranks]
    assert [result.code for result in results] == [0] * world_size, "\n".join(result.err for result in results)
    return [lines_of(result) for result in results]


def kill_one(program: str, world_size: int, victim: int, seconds: float, **task: Any) -> list[Result]:
    """Kill a rank that reads; returns the results of the others, of which nothing is left."""
    with start_ranks(program, world_size, **task) as ranks:
        for rank in ranks:
            assert read_told(rank)["step"] > 0
            assert len(rank.processes()) == 1  # its worker
            assert _shared_memory_of(rank) == []  # so nothing can be left there
        ranks[victim].process.kill()
        results = [rank.wait(seconds) for rank in ranks if rank is not ranks[victim]]
        assert wait_until(lambda: not _left_of(ranks), seconds=60)
    return results


def lines_of(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.out.splitlines() if line.startswith("{")]


def tell(**message: Any) -> None:
    """Called by a rank: print a line for ``run_ranks``."""
    print(json.dumps(message), flush=True)


def read_told(rank: Command) -> dict[str, Any]:
    """Wait for the next line that a running rank tells."""
    assert rank.process.stdout is not None
    for line in rank.process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise AssertionError(f"the rank ended without a word: {rank.wait().err}")


def digest_of_all(parts: list[Batch]) -> str:
    """The digest of a global batch, of the parts of all ranks in their order."""
    together: dict[str, Any] = {}
    for key, value in parts[0].items():
        of_ranks = [part[key] for part in parts]
        together[key] = list(chain(*of_ranks)) if isinstance(value, list) else np.concatenate(of_ranks)
    return digest(together)


def opened_shards() -> list[str]:
    """Record files that this process and its workers have open, as ``dataset/shard``."""
    me = psutil.Process()
    paths = [Path(file.path) for process in (me, *me.children()) for file in process.open_files()]
    return sorted({f"{path.parts[-4]}/{path.stem}" for path in paths if path.suffix == ".arrayrecord"})


def _left_of(ranks: list[Command]) -> list[list[str]]:
    """Command lines of what still runs of some ranks, their workers included."""
    processes = [psutil.Process(rank.pid) for rank in ranks if rank.process.poll() is None]
    processes += [process for rank in ranks for process in rank.processes()]
    return [process.cmdline() for process in processes if is_alive(process)]


def _shared_memory_of(rank: Command) -> list[str]:
    """Files in /dev/shm that a running rank and its workers have in memory."""
    processes = [psutil.Process(rank.pid), *rank.processes()]
    return [part.path for process in processes for part in process.memory_maps() if part.path.startswith("/dev/shm")]


def free_address() -> str:
    return f"localhost:{free_port()}"
