"""Several processes never train on the rows of all without a word."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from stream import ArgumentError, Loader, load_loader, make_loader
from tests.stream.index_root import write_dataset

REFUSED = r"rank= and world_size=, for example \*\*stream\.torch\.ranks\(\) or \*\*stream\.jax\.ranks\(\)"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("group")
    write_dataset(folder, "arm", {"train": [[9, 9]]}, size=(8, 8))
    return folder


def loader_of(root: Path, **arguments: Any) -> Loader:
    return make_loader(root, "arm", batch_size=4, **arguments)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_without_ranks_refuses_its_first_batch_below_torchrun(
    root: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    loader = loader_of(root, num_workers=num_workers)
    monkeypatch.setenv("WORLD_SIZE", "2")
    iterator = iter(loader)
    for take in (iterator.start_prefetch, iterator.__next__, iterator.__next__):
        with pytest.raises(ArgumentError, match=f"WORLD_SIZE is 2, .*{REFUSED}"):
            take()


def test_a_look_at_a_step_needs_no_ranks(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = loader_of(root)
    assert loader.batch_at(1)["sample"].tolist() == [ref.sample for ref in loader.describe(1)] == [4, 5, 6, 7]
    loader.save(tmp_path / "loader.json")
    assert load_loader(tmp_path / "loader.json").batch_at(1)["sample"].tolist() == [4, 5, 6, 7]


def test_ranks_that_are_given_are_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert next(iter(loader_of(root, rank=0, world_size=1)))["sample"].tolist() == [0, 1, 2, 3]
    assert next(iter(loader_of(root, rank=1, world_size=2)))["sample"].tolist() == [2, 3]
    assert next(iter(loader_of(root).with_ranks(1, 2)))["sample"].tolist() == [2, 3]


def test_the_ranks_of_a_file_are_those_of_another_process(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "loader.json"
    loader_of(root, rank=0, world_size=2).save(path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match=REFUSED):
        next(iter(load_loader(path)))
    assert next(iter(load_loader(path, rank=1)))["sample"].tolist() == [2, 3]


def test_a_single_process_needs_no_ranks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("", "1", "0", "two"):
        monkeypatch.setenv("WORLD_SIZE", size)
        assert next(iter(loader_of(root)))["sample"].tolist() == [0, 1, 2, 3]


def test_a_rank_without_the_count_of_ranks_is_refused(root: Path) -> None:
    with pytest.raises(ArgumentError, match="only rank=0; give rank and world_size together, or neither"):
        loader_of(root, rank=0)
    with pytest.raises(ArgumentError, match="only world_size=1; give rank and world_size together"):
        loader_of(root, world_size=1)
    with pytest.raises(ArgumentError, match="rank=2 of world_size=2"):
        loader_of(root).with_ranks(2, 2)


_TORCH = """
    import torch.distributed as group
    loader = stream.make_loader(root, "arm", batch_size=4)
    group.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=2)
"""
_JAX = """
    import jax
    assert not jax._src.xla_bridge.backends_are_initialized()
    loader = stream.make_loader(root, "arm", batch_size=4)
    next(iter(loader))
    assert not jax._src.xla_bridge.backends_are_initialized(), "looking for a group started JAX's backend"
    jax.distributed.initialize(f"localhost:{port}", 2, rank)
"""
_THEN = """
    try:
        next(iter(loader))
    except stream.ArgumentError as error:
        print(error)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "code", "message"),
    [("torch", _TORCH, "torch.distributed has 2 processes"), ("jax", _JAX, "JAX has 2 processes")],
)
def test_two_real_processes_are_found(root: Path, tmp_path: Path, module: str, code: str, message: str) -> None:
    pytest.importorskip(module)
    program = "import sys, stream\nroot, folder, port, rank = *sys.argv[1:4], int(sys.argv[4])\n"
    program += textwrap.dedent(code) + textwrap.dedent(_THEN)
    with socket.socket() as held:
        # JAX listens at it too; to other programs it is in use from now on.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("localhost", 0))
        command = [sys.executable, "-c", program, str(root), str(tmp_path), str(held.getsockname()[1])]
        processes = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
        try:
            for process in processes:
                assert message in process.communicate(timeout=300)[0]
        finally:
            for process in processes:
                process.kill()
