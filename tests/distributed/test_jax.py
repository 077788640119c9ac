"""jax.distributed on the CPU: global arrays of each process's rows, in other numbers of processes too, and a death."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import digest
from tests.distributed.expected import assert_reads_its_rows, bytes_of, make_loader, make_task
from tests.distributed.ranks import kill_one, run_ranks
from tests.installed import needs

pytestmark = needs("jax")

HEARTBEAT_S = 20
"""Without which JAX gives a process up; 100 if nothing is said."""

ENDED_S = 3 * HEARTBEAT_S
"""Seconds after which the other process is taken to hang."""


def _whole(root: Path, step: int) -> tuple[str, list[str]]:
    """Of a step of one process: the digest with the types that JAX makes of it, and the instructions."""
    batch = make_loader(root).batch_at(step)
    language = batch.pop("language")
    arrays = {k: v.astype(np.int32) if v.dtype == np.int64 and k != "sample" else v for k, v in batch.items()}
    return digest(arrays), language


def _assert_same(messages: list[list[dict[str, Any]]], root: Path, steps: range) -> None:
    expected = [_whole(root, step) for step in steps]
    for rank in messages:
        assert rank[0]["digests"] == [batch for batch, _ in expected]
        assert rank[0]["state"] == make_loader(root).state_at(steps.stop)
    for number, (_, language) in enumerate(expected):
        assert [text for rank in messages for text in rank[0]["language"][number]] == language


@pytest.mark.long
def test_two_processes_read_their_rows_and_make_the_arrays_of_one(oxe_root: Path) -> None:
    messages = run_ranks("jax_rank", 2, **make_task(oxe_root, num_workers=1))
    _assert_same(messages, oxe_root, range(3))
    # One more is on its way to the device.
    assert sum(rank[0]["bytes"] for rank in messages) == bytes_of(oxe_root, 3 + 1)
    for number, rank in enumerate(messages):
        assert_reads_its_rows(rank[0], oxe_root, rank=number, world_size=2)


@pytest.mark.slow
def test_a_state_of_two_processes_continues_in_one_and_then_in_two(oxe_root: Path) -> None:
    state: dict[str, Any] = {}
    done = 0
    for world_size, num_workers in ((2, 0), (1, 1), (2, 1)):
        messages = run_ranks("jax_rank", world_size, **make_task(oxe_root, num_workers=num_workers, state=state))
        _assert_same(messages, oxe_root, range(done, done + 3))
        done += 3
        state = messages[-1][0]["state"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_other_and_nothing_is_left(oxe_root: Path, victim: int) -> None:
    task = make_task(oxe_root, steps=1_000_000, num_workers=1, talks=True, heartbeat_s=HEARTBEAT_S)
    (result,) = kill_one("jax_rank", 2, victim, ENDED_S, **task)
    assert result.code != 0
