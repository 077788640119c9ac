"""Processes of Accelerate over gloo: each rank has its rows, or there is one error that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.expected import BATCH_SIZE, make_task
from tests.distributed.ranks import lines_of, run_ranks, start_ranks

pytest.importorskip("accelerate", reason="accelerate is not installed")

ENDED_S = 60.0
"""Seconds after which a rank that waits for one that failed is taken to hang."""


@pytest.mark.long
@pytest.mark.parametrize("world_size", [1, 2])
def test_each_rank_has_its_rows_or_a_prepared_loader_is_refused(oxe_root: Path, world_size: int) -> None:
    sharded = ["sharded"] * (world_size > 1)  # a process alone shards nothing
    task = make_task(oxe_root, ways=["as it is", "to_device", *sharded, "prepared"])
    with start_ranks("trainers.accelerate_rank", world_size, **task) as ranks:
        results = [rank.wait() for rank in ranks[:1]] + [rank.wait(ENDED_S) for rank in ranks[1:]]
    rows = BATCH_SIZE // world_size
    for rank, result in enumerate(results):
        assert result.code == 1, result.err
        messages = lines_of(result)
        for read in messages[:2]:
            assert read["ranks"] == [rank, world_size]
            firsts = [BATCH_SIZE * step + rank * rows for step in range(3)]
            assert read["samples"] == [list(range(first, first + rows)) for first in firsts]
        refused = [rank_message["refused"] for rank_message in messages[2:]]
        assert len(refused) == len(sharded) + 1, result.err
        for message in refused:
            assert "shards or dispatches the batches of StreamDataset, which has the rows of its rank" in message
            assert "do not give its DataLoader to accelerator.prepare" in message


@pytest.mark.long
def test_a_check_of_ranks_sees_in_the_first_step_that_rank_0_s_batches_are_dispatched(oxe_root: Path) -> None:
    messages = run_ranks("trainers.accelerate_rank", 2, **make_task(oxe_root, ways=["dispatched"]))
    refused = [rank[0]["refused"] for rank in messages]
    assert refused[0] == refused[1]
    # Rank 0 read two of its batches, and rank 1 got the second one.
    assert refused[0].startswith("process 1 has rank 1 of 2 and a batch of the samples 8, 9, 10, 11, which are not")
    assert "a wrapper shards, dispatches or collates batches again" in refused[0]
