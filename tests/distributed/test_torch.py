"""torch.distributed with gloo: ranks read their rows only, go on in other numbers, and die without a hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stream import digest
from tests.distributed.expected import BATCH_SIZE, assert_reads_its_rows, bytes_of, make_loader, make_task
from tests.distributed.ranks import kill_one, run_ranks
from tests.installed import needs

pytestmark = needs("torch")

ENDED_S = 60.0
"""Seconds after which a rank that outlived another is taken to hang. Gloo sees the lost connection at once."""


def _digests(root: Path, steps: range) -> list[str]:
    loader = make_loader(root)
    return [digest(loader.batch_at(step)) for step in steps]


@pytest.mark.long
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_each_rank_reads_its_rows_and_together_they_are_the_global_batch(oxe_root: Path, world_size: int) -> None:
    messages = run_ranks("torch_rank", world_size, **make_task(oxe_root, num_workers=[0, 1]))
    for run in range(2):  # without workers, and with one a rank
        assert messages[0][run]["digests"] == _digests(oxe_root, range(3))
        assert sum(rank[run]["bytes"] for rank in messages) == bytes_of(oxe_root, 3)
        for number, rank in enumerate(messages):
            assert_reads_its_rows(rank[run], oxe_root, rank=number, world_size=world_size)
            assert rank[run]["state"] == make_loader(oxe_root).state_at(3)


@pytest.mark.long
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_never_share_rows_without_a_word_however_their_loaders_are_made(oxe_root: Path, world_size: int) -> None:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    rows = BATCH_SIZE // world_size
    for rank, (refused, accepted) in enumerate(run_ranks("torch_start", world_size, **make_task(oxe_root))):
        assert f"torch.distributed has {world_size} processes" in refused["refused"]
        assert "**stream.torch.ranks()" in refused["refused"] and "rank=0, world_size=1" in refused["refused"]
        assert accepted["before"] == [1, 1]
        assert accepted["ways"].pop("a loader that was told nothing") == []
        assert accepted["ways"].pop("all rows on purpose") == [list(range(8)), list(range(8, 16))]
        assert len(accepted["ways"]) == 5
        for way, samples in accepted["ways"].items():
            first = rank * rows
            assert samples == [list(range(first, first + rows)), list(range(8 + first, 8 + first + rows))], way
        assert accepted["readme"][:2] == [rank, world_size] and accepted["readme"][2] > 0


@pytest.mark.slow
def test_a_state_of_four_ranks_continues_in_two_and_then_in_four_bitwise(oxe_root: Path) -> None:
    state: dict[str, Any] = {}
    done = 0
    for world_size, num_workers in ((4, 1), (2, 0), (4, 0), (2, 1)):
        messages = run_ranks("torch_rank", world_size, **make_task(oxe_root, num_workers=[num_workers], state=state))
        assert messages[0][0]["digests"] == _digests(oxe_root, range(done, done + 3))
        done += 3
        states = [rank[0]["state"] for rank in messages]
        assert states == [make_loader(oxe_root).state_at(done)] * world_size
        state = states[-1]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("victim", [0, -1])
def test_a_killed_rank_ends_the_others_and_nothing_is_left(oxe_root: Path, world_size: int, victim: int) -> None:
    task = make_task(oxe_root, steps=1_000_000, num_workers=[1], talks=True)
    for result in kill_one("torch_rank", world_size, victim, ENDED_S, **task):
        assert result.code == 1
        assert "gloo" in result.err, result.err
