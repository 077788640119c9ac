"""Several hosts, with addresses of their own: training as documented, a cut cable, a lost host, a restarted store."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream import digest, make_loader
from stream.format.names import FETCHED_NAME
from tests.distributed.expected import make_task
from tests.distributed.hosts.network import Host, make_hosts, missing
from tests.distributed.ranks import read_told
from tests.distributed.training import TOLERANCE, arguments, jax_losses, torch_losses
from tests.fixtures.command import Command, Result, is_written, run, tree, wait_until
from tests.fixtures.object_stores import environment_of

# Slow, not long: twice, in some six runs of everything, a run over two hosts and the whole machine came to a halt.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() != "", reason=missing())]

TIMEOUT_S = 10
"""Seconds for each message between ranks of torch, and without which JAX gives a process up."""


def _torchrun(stack: contextlib.ExitStack, hosts: list[Host], *arguments: str) -> list[Command]:
    """Start the command of docs/train.md on each host, without Slurm."""
    nodes = ["--nnodes", str(len(hosts)), "--nproc-per-node", "1", "--rdzv-id", "run"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].name}:29500"]
    program = [*nodes, *meeting, "examples/train_latent_action.py", *arguments]
    return [stack.enter_context(host.start(*program, module="torch.distributed.run")) for host in hosts]


def _check(results: list[Result]) -> None:
    assert [result.code for result in results] == [0] * len(results), "\n".join(result.err for result in results)


def _assert_same(losses: list[list[float]], expected: list[list[float]]) -> None:
    for together, alone in zip(losses, expected, strict=True):
        assert together == pytest.approx(alone, rel=TOLERANCE)


@pytest.fixture(scope="module")
def alone(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    """Losses of a run of PyTorch in one process."""
    out = tmp_path_factory.mktemp("alone")
    command_line = arguments(oxe_root, out, "--steps", "6", "--batch-size", "12")
    _check(
        [run("--nproc-per-node", "1", "examples/train_latent_action.py", *command_line, module="torch.distributed.run")]
    )
    return torch_losses(out)


@pytest.mark.parametrize("count", [2, 3])
def test_torchrun_on_hosts_trains_what_one_process_trains(
    oxe_root: Path, tmp_path: Path, alone: list[list[float]], count: int
) -> None:
    command_line = arguments(oxe_root, tmp_path, "--steps", "6", "--batch-size", "12")
    with make_hosts(*("one", "two", "three")[:count]) as hosts, contextlib.ExitStack() as stack:
        _check([command.wait() for command in _torchrun(stack, hosts, *command_line)])
    _assert_same(torch_losses(tmp_path), alone)


@pytest.mark.parametrize("count", [2, 3])
def test_jax_on_hosts_trains_what_one_process_trains(oxe_root: Path, tmp_path: Path, count: int) -> None:
    pytest.importorskip("orbax.checkpoint", reason="orbax is not installed")
    parts, full = tmp_path / "parts", tmp_path / "whole"
    size = ("--steps", "4", "--batch-size", "12")
    with make_hosts(*("one", "two", "three")[:count]) as hosts, contextlib.ExitStack() as stack:
        commands = []
        for number, host in enumerate(hosts):
            process_options = ["--processes", str(count), "--process-id", str(number), "--coordinator", "one:7777"]
            command_line = arguments(oxe_root, parts, *size, *process_options)
            commands.append(stack.enter_context(host.start(*command_line, module="examples.train_jax")))
        _check([command.wait() for command in commands])
    _check([run(*arguments(oxe_root, full, *size), module="examples.train_jax")])
    _assert_same(jax_losses(parts), jax_losses(full))


def test_a_cable_that_is_cut_and_put_back_only_costs_time(
    oxe_root: Path, tmp_path: Path, alone: list[list[float]]
) -> None:
    command_line = arguments(oxe_root, tmp_path, "--steps", "6", "--batch-size", "12")
    with make_hosts("one", "two") as hosts, contextlib.ExitStack() as stack:
        commands = _torchrun(stack, hosts, *command_line)
        assert commands[0].process.stdout is not None
        assert commands[0].process.stdout.readline().startswith("step 2")
        hosts[1].cut()
        time.sleep(5)
        assert [command.process.poll() for command in commands] == [None, None]
        hosts[1].restore()
        _check([command.wait() for command in commands])
    _assert_same(torch_losses(tmp_path), alone)


def _lose_one(program: str, task: dict[str, Any]) -> tuple[Result, float]:
    """Lose the second of two hosts, and return the result of the first and the seconds until its end."""
    with make_hosts("one", "two") as hosts, contextlib.ExitStack() as stack:
        ranks = []
        for number, host in enumerate(hosts):
            task_json = json.dumps({"rank": number, "world_size": 2, **task})
            ranks.append(stack.enter_context(host.start(task_json, module=f"tests.distributed.{program}")))
        for rank in ranks:
            assert read_told(rank)["step"] > 0
        hosts[1].lose()
        began = time.monotonic()
        result = ranks[0].wait(6 * TIMEOUT_S)
        # JAX aborts its process, whose workers see that a moment later.
        assert wait_until(lambda: not ranks[0].processes(), seconds=60)
        return result, time.monotonic() - began


def test_a_lost_host_ends_the_ranks_of_torch_after_their_timeout(oxe_root: Path, tmp_path: Path) -> None:
    task = make_task(oxe_root, steps=1_000_000, num_workers=[1], talks=True, timeout_s=TIMEOUT_S)
    result, seconds = _lose_one("torch_rank", {**task, "store": str(tmp_path / "store")})
    assert result.code == 1 and seconds < 3 * TIMEOUT_S
    assert "gloo" in result.err, result.err


def test_a_lost_host_ends_the_processes_of_jax_after_their_heartbeats(oxe_root: Path) -> None:
    task = make_task(oxe_root, steps=1_000_000, num_workers=1, talks=True, heartbeat_s=TIMEOUT_S)
    result, _ = _lose_one("jax_rank", {**task, "address": "one:7777"})
    assert result.code != 0


@contextlib.contextmanager
def _store(host: Host, folder: Path) -> Iterator[Command]:
    """Serve a folder as ``s3://data`` on a host."""
    with host.start(
        str(folder), "9000", module="tests.distributed.hosts.s3_store", **environment_of("s3", "")
    ) as server:
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "ready\n", server.wait().err
        yield server


def test_a_fetch_survives_a_cut_cable_and_continues_after_the_store_was_restarted(
    oxe_root: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    for name in ("bridge", "kuka", "viola"):
        shutil.copytree(oxe_root / name, source / name)
    command = ("s3://data", str(tmp_path / "local"), "--mixture", "bridge,kuka,viola", "--jobs", "1")
    environment = environment_of("s3", "http://store:9000")
    with make_hosts("one", "store") as (client, store):
        with _store(store, source):
            store.cut()
            with client.start(*command, module="pairstream fetch", **environment) as fetch:
                time.sleep(4)
                assert fetch.process.poll() is None
                store.restore()
                assert wait_until(lambda: is_written(tmp_path / "local", "*"), seconds=60, poll=0.01)
                store.kill()
                failed = fetch.wait()
        assert failed.code == 1 and "s3://data" in failed.error(), failed
        with _store(store, source), client.start(*command, module="pairstream fetch", **environment) as fetch:
            assert fetch.wait().code == 0
    copied = {name: content for name, content in tree(tmp_path / "local").items() if not name.endswith(FETCHED_NAME)}
    assert copied.items() <= tree(source).items()
    mixture = "bridge,kuka,viola"
    roots = (source, tmp_path / "local")
    first, second = (make_loader(root, mixture, split="train", batch_size=8).batch_at(3) for root in roots)
    assert digest(first) == digest(second)
