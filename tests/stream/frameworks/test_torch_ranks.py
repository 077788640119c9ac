"""Ranks of PyTorch's processes: found when an iteration begins, in the group or the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stream
from stream.base.errors import ArgumentError
from tests.stream.transforms import Noise

torch = pytest.importorskip("torch", reason="torch is not installed")

from stream.torch import StreamDataset, ranks, to_device  # noqa: E402


class _Wrapped(torch.utils.data.IterableDataset[Any]):  # type: ignore[name-defined]
    """A dataset of a user around another."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        yield from self.batches


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that sets RANK and WORLD_SIZE as torchrun does."""

    def start(rank: int | str | None, world_size: int | str) -> None:
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        if rank is not None:
            monkeypatch.setenv("RANK", str(rank))

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return start


def _rows(batches: Any) -> list[int]:
    return next(iter(batches))["sample"].tolist()


def test_a_loader_takes_the_ranks_of_the_environment(oxe_root: Path, environment: Any) -> None:
    assert ranks() == {"rank": 0, "world_size": 1}
    environment("x", 1)
    assert ranks() == {"rank": 0, "world_size": 1}
    environment(3, 4)
    assert ranks() == {"rank": 3, "world_size": 4}
    assert _rows(stream.make_loader(oxe_root, "bridge", batch_size=8, **ranks())) == [6, 7]


@pytest.mark.parametrize("way", [iter, lambda dataset: to_device(dataset, "cpu")], ids=["for", "to_device"])
def test_a_dataset_finds_its_ranks_when_an_iteration_begins(oxe_root: Path, environment: Any, way: Any) -> None:
    dataset = StreamDataset(oxe_root, "bridge", batch_size=8)
    assert dataset.loader.action_names["bridge"]
    environment(1, 2)
    assert _rows(way(dataset)) == [4, 5, 6, 7]
    assert (dataset.loader.rank, dataset.loader.world_size) == (1, 2)
    environment(3, 4)  # the next step, by other ranks
    assert _rows(way(dataset)) == [14, 15]


def test_ranks_that_were_given_stay(oxe_root: Path, environment: Any) -> None:
    environment(1, 2)
    assert _rows(StreamDataset(oxe_root, "bridge", batch_size=4, rank=0, world_size=1)) == [0, 1, 2, 3]
    assert _rows(StreamDataset(oxe_root, "bridge", batch_size=4, rank=3, world_size=4)) == [3]


def test_statistics_of_a_loader_stay_while_its_ranks_do(oxe_root: Path, environment: Any) -> None:
    environment(1, 2)
    dataset = StreamDataset(oxe_root, "bridge", batch_size=8, num_steps=2)
    for _ in range(2):
        assert len(list(dataset)) == 2
    assert dataset.loader.stats()["samples"] == 2 * 2 * 4


def test_a_dataset_that_accelerate_shards_says_to_leave_it_unprepared(oxe_root: Path, environment: Any) -> None:
    shard = pytest.importorskip("accelerate.data_loader").IterableDatasetShard
    environment(1, 2)
    dataset = StreamDataset(oxe_root, "bridge", batch_size=8, action=None, state=None, language=None)
    sharded = shard(dataset, batch_size=2, num_processes=2, process_index=1)
    message = "IterableDatasetShard shards or dispatches .* do not give its DataLoader to accelerator\\.prepare"
    inside_another = shard(_Wrapped(dataset), batch_size=2, num_processes=2, process_index=1)
    for use in (lambda: next(iter(sharded)), lambda: next(iter(inside_another)), lambda: sharded.set_epoch(0)):
        with pytest.raises(ArgumentError, match=message):
            use()
    assert _rows(torch.utils.data.DataLoader(dataset, batch_size=None)) == [4, 5, 6, 7]


@pytest.mark.parametrize("rank", [None, "first"])
def test_a_group_without_a_rank_is_an_error_when_it_begins(oxe_root: Path, environment: Any, rank: Any) -> None:
    environment(rank, 2)
    dataset = StreamDataset(oxe_root, "bridge", batch_size=4)
    assert dataset.loader.batch_size == 4
    with pytest.raises(ArgumentError, match=r"RANK='.*' and WORLD_SIZE='2'; expected two numbers.*init_process_group"):
        iter(dataset)
    environment(0, 3)
    with pytest.raises(ArgumentError, match="batch_size=4 is not divisible by world_size=3"):
        iter(dataset)


def test_a_state_of_random_transforms_is_that_of_the_group_s_ranks(oxe_root: Path, environment: Any) -> None:
    environment(1, 2)

    def make() -> StreamDataset:
        return StreamDataset(oxe_root, "bridge", batch_size=4, transforms=[Noise()])

    state = make().state_dict()
    assert state["random_ranks"] == 2
    dataset = make()
    dataset.load_state_dict({**state, "step": 3})
    batch = next(iter(dataset))
    assert batch["sample"].tolist() == [14, 15]
    environment(0, 1)  # the group has ended
    assert dataset.state_dict()["random_ranks"] == 2
