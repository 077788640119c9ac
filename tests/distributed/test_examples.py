"""The examples in several processes: they train the model that one process trains, and go on in another number."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.distributed.ranks import free_address
from tests.distributed.training import TOLERANCE, arguments, jax_losses, torch_losses
from tests.fixtures.command import Command, is_alive, start, wait_until

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def _torchrun(processes: int, *arguments: str) -> Iterator[Command]:
    """Start the example below torchrun, whose ranks have sessions of their own; none outlives the block."""
    started = ["--nproc-per-node", str(processes), "examples/train_latent_action.py", *arguments]
    with start(*started, module="torch.distributed.run") as command:
        below: list[psutil.Process] = []
        try:
            yield command
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                below = psutil.Process(command.pid).children(recursive=True)
            for process in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _train_torch(processes: int, *options: str) -> None:
    with _torchrun(processes, *options) as command:
        result = command.wait()
    assert result.code == 0, result.err


def _train_jax(processes: int, *options: str) -> None:
    address = free_address()
    with contextlib.ExitStack() as stack:
        commands = []
        for number in range(processes):
            process_options = ["--processes", str(processes), "--process-id", str(number), "--coordinator", address]
            commands.append(stack.enter_context(start(*options, *process_options, module="examples.train_jax")))
        results = [command.wait() for command in commands]
    assert [result.code for result in results] == [0] * processes, results


def _wait_for_a_step(command: Command) -> None:
    assert command.process.stdout is not None
    line = command.process.stdout.readline()
    assert line.startswith("step "), line


def test_two_processes_of_torchrun_interrupted_continue_in_one_and_then_in_two(oxe_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    parts, full = tmp_path / "parts", tmp_path / "whole"
    with _torchrun(2, *arguments(oxe_root, parts, "--steps", "100000")) as command:
        _wait_for_a_step(command)
        command.signal(signal.SIGINT)
        result = command.wait()
    assert result.err.count("starts at step 0; Ctrl-C saves a checkpoint, --resume continues") == 1
    done = len(torch_losses(parts))
    _train_torch(1, *arguments(oxe_root, parts, "--steps", str(done + 4), "--resume"))
    _train_torch(2, *arguments(oxe_root, parts, "--steps", str(done + 8), "--resume"))
    _train_torch(1, *arguments(oxe_root, full, "--steps", str(done + 8)))
    for together, alone in zip(torch_losses(parts), torch_losses(full), strict=True):
        assert together == pytest.approx(alone, rel=TOLERANCE)


def test_a_killed_rank_of_torchrun_ends_the_run_and_leaves_nothing(oxe_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    with _torchrun(2, *arguments(oxe_root, tmp_path, "--steps", "100000")) as command:
        _wait_for_a_step(command)
        below = psutil.Process(command.pid).children(recursive=True)
        ranks = [process for process in below if process.ppid() == command.pid]
        assert len(ranks) == 2 and len(below) >= 4  # each has a worker
        ranks[1].kill()
        assert command.wait().code == 1
        assert wait_until(lambda: not any(is_alive(process) for process in below), seconds=60)


def test_two_processes_of_jax_continue_in_one_and_then_in_two(oxe_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    pytest.importorskip("orbax.checkpoint", reason="orbax is not installed")

    parts, full = tmp_path / "parts", tmp_path / "whole"
    for processes, steps in ((2, 4), (1, 6), (2, 8)):
        more = ["--resume"] if parts.exists() else []
        _train_jax(processes, *arguments(oxe_root, parts, "--steps", str(steps), *more))
        assert len(jax_losses(parts)) == steps
    _train_jax(1, *arguments(oxe_root, full, "--steps", "8"))
    for together, alone in zip(jax_losses(parts), jax_losses(full), strict=True):
        assert together == pytest.approx(alone, rel=TOLERANCE)
