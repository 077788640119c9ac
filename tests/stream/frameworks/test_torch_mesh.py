"""Ranks among model-parallel processes, by DeviceMesh and by process group, for every process of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from stream.base.errors import ArgumentError

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from stream.torch import ranks  # noqa: E402

Mesh = Callable[[int], DeviceMesh]


@pytest.fixture
def start() -> Iterator[Callable[[int, int], None]]:
    """A function that makes this process one of a group; torch's backend ``fake`` needs no others."""

    def begin(process: int, world_size: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=process, world_size=world_size)

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def _ranks_of(start: Any, shape: Sequence[int], names: Sequence[str], **arguments: Any) -> tuple[list[int], int]:
    """Return the rank of every process of a mesh, and their number of ranks."""
    world_size = int(torch.tensor(shape).prod())
    ranks_by_process = []
    for process in range(world_size):
        start(process, world_size)
        mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=tuple(names))
        ranks_by_process.append(ranks(mesh, **arguments))
    (num_ranks,) = {each["world_size"] for each in ranks_by_process}
    return [each["rank"] for each in ranks_by_process], num_ranks


@pytest.mark.parametrize(
    ("shape", "names", "expected"),
    [
        ([8], ["dp"], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([4, 2], ["dp", "tp"], [0, 0, 1, 1, 2, 2, 3, 3]),
        ([2, 4], ["dp_replicate", "dp_shard"], [0, 1, 2, 3, 4, 5, 6, 7]),  # HSDP: replicas take different rows
        # torchtitan's order: pp, batch, cp, tp.
        ([2, 2, 1, 2], ["pp", "batch", "cp", "tp"], [0, 0, 1, 1, 0, 0, 1, 1]),
        ([2, 2, 2], ["dp_replicate", "cp", "dp_shard"], [0, 1, 0, 1, 2, 3, 2, 3]),
        ([2, 4], ["tp", "cp"], [0] * 8),
    ],
    ids=["ddp", "tp", "hsdp", "torchtitan", "cp between", "one model"],
)
def test_processes_of_one_model_have_one_rank(start: Any, shape: Any, names: Any, expected: list[int]) -> None:
    assert _ranks_of(start, shape, names) == (expected, max(expected) + 1)


def test_dimensions_of_other_names_have_to_be_chosen(start: Any) -> None:
    with pytest.raises(ArgumentError, match=r"'workers', 'tp': 'workers' may mean other rows or the same; give dims="):
        _ranks_of(start, [4, 2], ["workers", "tp"])
    with pytest.raises(ArgumentError, match="'fsdp' may mean"):  # of torchtitan it includes cp
        _ranks_of(start, [4, 2], ["fsdp", "tp"])
    assert _ranks_of(start, [4, 2], ["workers", "tp"], dims=["workers"]) == ([0, 0, 1, 1, 2, 2, 3, 3], 4)
    assert _ranks_of(start, [4, 2], ["dp", "tp"], dims=["tp"]) == ([0, 1] * 4, 2)
    assert _ranks_of(start, [4, 2], ["dp", "tp"], dims=[]) == ([0] * 8, 1)
    for dims in (["rows"], "dp"):
        with pytest.raises(ArgumentError, match="expected a list of names of 'dp', 'tp'"):
            _ranks_of(start, [4, 2], ["dp", "tp"], dims=dims)


def test_a_part_of_a_mesh_and_a_process_group_count_the_ranks_in_them(start: Any) -> None:
    start(5, 8)
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    for part in (mesh["dp"], mesh["dp"].get_group(), mesh.get_group("dp")):
        assert ranks(part) == {"rank": 2, "world_size": 4}
    assert ranks(mesh["tp"], dims=["tp"]) == {"rank": 1, "world_size": 2}
    assert ranks(mesh["tp"]) == {"rank": 0, "world_size": 1}
    assert ranks() == {"rank": 5, "world_size": 8}


def test_a_mesh_without_names_of_one_dimension_is_data_parallel(start: Any) -> None:
    start(1, 4)
    assert ranks(init_device_mesh("cpu", (4,))) == {"rank": 1, "world_size": 4}
    with pytest.raises(ArgumentError, match="give dims="):
        ranks(init_device_mesh("cpu", (2, 2)))


def test_a_process_outside_of_the_mesh_or_group_is_an_error(start: Any) -> None:
    start(3, 4)
    mesh = DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",))
    with pytest.raises(ArgumentError, match="this process is not in"):
        ranks(mesh)
    group = dist.new_group([0, 1])
    with pytest.raises(ArgumentError, match="expected a DeviceMesh, or a process group with this"):
        ranks(group)


def test_dims_need_a_mesh(start: Any) -> None:
    with pytest.raises(ArgumentError, match=r"dims=\['dp'\] without a mesh"):
        ranks(dims=["dp"])
    start(0, 2)
    with pytest.raises(ArgumentError, match="of a process group, which has no dimensions"):
        ranks(dist.new_group([0, 1]), dims=["dp"])
