"""Ranks of PyTorch's processes, also among model-parallel ones, and a check of the rows that they get."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from stream.base.errors import ArgumentError, StreamError
from stream.base.extras import imports_of
from stream.batch.spec import Batch, map_values
from stream.loader.comparison import digest
from stream.loader.loader import Loader

with imports_of("torch", by="stream.torch"):
    import torch
    import torch.distributed
    from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_DATA_DIMS = frozenset({"dp", "data", "batch", "dp_replicate", "dp_shard", "replicate", "shard"})
"""Names of mesh dimensions whose processes take different rows; torchtitan's ``fsdp`` includes those of ``cp``."""
_MODEL_DIMS = frozenset({"tp", "cp", "sp", "pp", "model", "tensor", "context", "sequence", "pipeline"})
"""Names of mesh dimensions whose processes share the rows of a model."""


def ranks(mesh: DeviceMesh | ProcessGroup | None = None, *, dims: Sequence[str] | None = None) -> dict[str, Any]:
    """Return this process's rank and the number of ranks, for ``make_loader(..., **ranks())``.

    Without a mesh each process is a rank: right for DDP, FSDP and HSDP, whose replicas take different rows. Processes
    that share one model by tensor, context or pipeline parallelism need the same rows: give the mesh, and they have one
    rank. Row-major mesh ``("pp", "dp", "tp")`` of 2 x 2 x 2 processes:

        process       0  1  2  3  4  5  6  7
        ranks(mesh)   0  0  1  1  0  0  1  1   of 2

    Args:
        mesh: DeviceMesh of the job; a part of it, such as ``mesh["dp"]``; or the process group of the processes that
            take different rows.
        dims: Dimensions of the mesh whose processes take different rows, in any order. By default the only one, or
            those named ``dp``, ``dp_replicate``, ``dp_shard``, ``data``, ``batch``, ``replicate`` or ``shard``, if the
            others are named ``tp``, ``cp``, ``sp``, ``pp``, ``model``, ``tensor``, ``context``, ``sequence`` or
            ``pipeline``.

    Returns:
        ``rank`` and ``world_size`` in the mesh or group. Without one, of ``torch.distributed`` if it is initialised,
        else of the environment (``torchrun``), else 0 and 1.

    Raises:
        ArgumentError: The environment has ``WORLD_SIZE`` above 1 without a number ``RANK``; the mesh has dimensions of
            other names, not those of ``dims``, or not this process.
    """
    if isinstance(mesh, DeviceMesh):
        return _ranks_of_mesh(mesh, dims)
    if mesh is not None:
        return _ranks_of_group(mesh, dims)
    if dims is not None:
        raise ArgumentError(f"dims={dims!r:.100} without a mesh; give ranks(mesh, dims=...)")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()}
    world_size = os.environ.get("WORLD_SIZE") or "1"
    rank = "0" if world_size == "1" else os.environ.get("RANK", "")
    if not (rank.isdecimal() and world_size.isdecimal()):
        raise ArgumentError(
            f"the environment has RANK={rank!r} and WORLD_SIZE={world_size!r}; expected two numbers, as torchrun sets "
            "them: call torch.distributed.init_process_group first, or give rank and world_size"
        )
    return {"rank": int(rank), "world_size": int(world_size)}


def _ranks_of_group(group: ProcessGroup, dims: Sequence[str] | None) -> dict[str, Any]:
    if dims is not None:
        raise ArgumentError(f"dims={dims!r:.100} of a process group, which has no dimensions; give a DeviceMesh")
    # new_group returns a number to processes that are not in the group.
    rank = torch.distributed.get_rank(group) if isinstance(group, torch.distributed.ProcessGroup) else -1
    if rank < 0:
        raise ArgumentError(
            f"{group!r:.100}: expected a DeviceMesh, or a process group with this process; give each process its "
            "data-parallel group"
        )
    return {"rank": rank, "world_size": torch.distributed.get_world_size(group)}


def _ranks_of_mesh(mesh: DeviceMesh, dims: Sequence[str] | None) -> dict[str, Any]:
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ArgumentError(f"this process is not in {mesh!r:.200}; give ranks the mesh of all processes")
    # A rank counts the coordinates of the data dimensions row by row, as the mesh counts its processes.
    rank, world_size = 0, 1
    for number in _data_dims(mesh, dims):
        rank = rank * mesh.shape[number] + coordinate[number]
        world_size *= mesh.shape[number]
    return {"rank": rank, "world_size": world_size}


def _data_dims(mesh: DeviceMesh, dims: Sequence[str] | None) -> list[int]:
    """Return the numbers of the dimensions whose processes take different rows."""
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    if dims is None and mesh.ndim == 1 and names[0] not in _MODEL_DIMS:
        return [0]
    if dims is None:
        if unknown := [name for name in names if name not in _DATA_DIMS | _MODEL_DIMS]:
            raise ArgumentError(
                f"a mesh with the dimensions {', '.join(map(repr, names))}: {', '.join(map(repr, unknown))} may mean "
                "other rows or the same; give dims=, the dimensions whose processes take different rows"
            )
        dims = [name for name in names if name in _DATA_DIMS]
    if isinstance(dims, str) or not set(dims) <= set(names):
        raise ArgumentError(f"dims={dims!r:.100}; expected a list of names of {', '.join(map(repr, names))}")
    return [number for number, name in enumerate(names) if name in dims]


@dataclass(frozen=True)
class _Report:
    """Report of a process to all others.

    Attributes:
        ranks: Rank and world size of its loader.
        mesh_ranks: Those of its place in the mesh, or None without a mesh.
        order: Hash of the order of samples.
        content: Hash of its batch.
        samples: Sample numbers of its batch, or None if a transform removed them.
        step: Step that its batch belongs to, or None if it is not the batch of the loader's rank at any step.
    """

    ranks: tuple[int, int]
    mesh_ranks: tuple[int, int] | None
    order: str
    content: str
    samples: list[int] | None
    step: int | None


def check_ranks(
    loader: Loader,
    batch: Batch | None = None,
    *,
    mesh: DeviceMesh | ProcessGroup | None = None,
    dims: Sequence[str] | None = None,
) -> None:
    """Compare the rows of all processes: the same for equal ranks, different for other ranks, complete together.

    All processes of ``torch.distributed`` call it once, with the first batch that they train on. It costs a hash of the
    batch, and a message of some numbers a process.

    Args:
        loader: Loader of this process; of a ``StreamDataset`` its attribute ``loader``.
        batch: Batch as it reaches the model, on any device; by default the loader's batch of step 0, which shows
            mistakes of ranks but not of a wrapper.
        mesh: As for ``ranks``: the loader must have its ranks.
        dims: As for ``ranks``.

    Raises:
        ArgumentError: In every process: ranks are missing or not those of the mesh, orders of samples differ, or
            batches are not those of the ranks, as when a wrapper shards or dispatches them again.
    """
    report: _Report | str
    try:
        mesh_ranks = None if mesh is None else tuple(ranks(mesh, dims=dims).values())
        report = _report(loader, loader.batch_at(0) if batch is None else batch, mesh_ranks)
    except StreamError as error:
        report = str(error)  # the other processes would wait for this one
    reports = [report]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        reports = [report] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(reports, report)
    problems = [f"process {process}: {text}" for process, text in enumerate(reports) if isinstance(text, str)]
    problems = problems or list(_problems([report for report in reports if isinstance(report, _Report)]))
    if problems:
        raise ArgumentError(problems[0])


def _report(loader: Loader, batch: Batch, mesh_ranks: Any) -> _Report:
    host_batch = map_values(lambda _, value: _array(value) if torch.is_tensor(value) else value, batch)
    samples, step = host_batch.get("sample"), None
    if samples is not None:
        samples = np.asarray(samples).tolist()
        first_step = samples[0] // loader.batch_size if samples else 0
        if samples == loader.rank_plan.samples(first_step).tolist():
            step = first_step
    return _Report(
        ranks=(loader.rank, loader.world_size),
        mesh_ranks=mesh_ranks,
        order=xxhash.xxh3_64_hexdigest(json.dumps(loader.fingerprint, sort_keys=True).encode()),
        content=digest(host_batch)[:16],
        samples=samples,
        step=step,
    )


def _array(tensor: torch.Tensor) -> np.ndarray:
    # numpy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().cpu().numpy()


def _problems(reports: list[_Report]) -> Iterator[str]:
    """Yield what is wrong, the cause before its consequences."""
    if len(orders := _processes_by(report.order for report in reports)) > 1:
        yield (
            f"{_groups(orders)} have other orders of samples; give make_loader the same mixture, batch_size, seed and "
            "choices in every process"
        )
    world_sizes = {report.ranks[1] for report in reports}
    by_rank = _processes_by(report.ranks[0] for report in reports)
    if world_sizes != {len(by_rank)} or len({len(processes) for processes in by_rank.values()}) > 1:
        listed = ", ".join(f"rank {rank}: {_listed(processes)}" for rank, processes in sorted(by_rank.items()))
        yield (
            f"{len(reports)} processes have world_size={_listed(sorted(world_sizes))} and {listed}; expected each rank "
            "below world_size, in as many processes as a model has: give make_loader **stream.torch.ranks(mesh)"
        )
    for process, report in enumerate(reports):
        if report.mesh_ranks not in (None, report.ranks):
            yield (
                f"process {process} has rank {report.ranks[0]} of {report.ranks[1]}, and its place in the mesh needs "
                f"rank {report.mesh_ranks[0]} of {report.mesh_ranks[1]}; give make_loader **stream.torch.ranks(mesh)"
            )
    for process, report in enumerate(reports):
        if report.samples is not None and report.step is None:
            yield (
                f"process {process} has rank {report.ranks[0]} of {report.ranks[1]} and a batch of the samples "
                f"{_listed(report.samples)}, which are not the rows of this rank at any step; a wrapper shards, "
                "dispatches or collates batches again: train on the batches of the loader as they are"
            )
    if len(steps := _processes_by(report.step for report in reports)) > 1:
        yield f"{_groups(steps)} have batches of the steps {_listed(list(steps))}; check the batches of one step"
    for rank, processes in by_rank.items():
        if len(contents := _processes_by(reports[process].content for process in processes)) > 1:
            groups = [[processes[number] for number in numbers] for numbers in contents.values()]
            yield (
                f"{_groups(dict(enumerate(groups)))} have rank {rank} and other batches; give transforms and columns "
                "the same arguments in every process"
            )
    if len(_processes_by(report.content for report in reports)) < len(by_rank):
        yield "processes of different ranks have the same batch; train on the batches of the loader as they are"


def _processes_by(values: Iterable[Any]) -> dict[Any, list[int]]:
    """Return the numbers of the processes that have each value."""
    processes: defaultdict[Any, list[int]] = defaultdict(list)
    for process, value in enumerate(values):
        processes[value].append(process)
    return dict(processes)


def _groups(processes_by_value: dict[Any, list[int]]) -> str:
    nouns = {True: "processes", False: "process"}
    return " and ".join(f"{nouns[len(numbers) > 1]} {_listed(numbers)}" for numbers in processes_by_value.values())


def _listed(numbers: Sequence[Any]) -> str:
    """Return some numbers with commas, the middle of many left out.

    >>> _listed([3]), _listed(range(1000))
    ('3', '0, 1, 2, 3 ... 999')
    """
    if len(numbers) > 6:
        return f"{', '.join(map(str, numbers[:4]))} ... {numbers[-1]}"
    return ", ".join(map(str, numbers))
