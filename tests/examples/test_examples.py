"""The examples, single files to copy: as commands they learn, stop at Ctrl-C with a checkpoint, and continue."""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command import REPOSITORY, TIMEOUT, wait_until


def _start(*command: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env=environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def _command(example: str, root: Path, out: Path, *more: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    mixture = "bridge,viola" if example == "train_policy" else "bridge"
    command = [f"examples/{example}.py", "--root", str(root), "--out", str(out), "--mixture", mixture]
    return _start(*command, "--batch-size", "8", "--num-workers", "1", *more, stdout=stdout)


def _finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    return process.returncode, output, errors


def _run(example: str, root: Path, out: Path, *more: str) -> tuple[int, str, str]:
    return _finish(_command(example, root, out, *more))


def _interrupt(example: str, root: Path, out: Path, *more: str) -> tuple[int, str]:
    """Send Ctrl-C when the first steps are reported; the others wait, as the pipe of the reports is full then."""
    reader, writer = os.pipe()
    filling = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096) - ROOM
    os.write(writer, b"\n" * filling)
    process = _command(example, root, out, *more, stdout=writer)
    os.close(writer)
    try:
        with open(reader) as reports:
            assert wait_until(lambda: _unread(reader) > filling or process.poll() is not None, seconds=TIMEOUT)
            process.send_signal(signal.SIGINT)
            output = reports.read()
        _, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert output.lstrip().startswith("step "), errors
    return process.returncode, errors


def _unread(pipe: int) -> int:
    """Return the bytes in a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


def _losses(example: str, out: Path) -> list[list[float]]:
    """Return the loss of each step, and the loss of predicting frame t."""
    if example != "train_jax":
        import torch

        return torch.load(out / "checkpoint.pt", weights_only=True)["losses"]
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(out / "checkpoints") as manager:
        return manager.restore(None, args=ocp.args.Composite(losses=ocp.args.JsonRestore())).losses


def _needs(example: str) -> Any:
    modules = ["jax", "orbax"] if example == "train_jax" else ["torch"]
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.param(example, marks=pytest.mark.skipif(bool(missing), reason=f"{missing} not installed"))


EXAMPLES = [_needs(name) for name in ("train_latent_action", "train_jax", "train_world_model", "train_policy")]
FILES = sorted((REPOSITORY / "examples").glob("*.py"))
MOST_LINES = 120
ROOM = 300
"""Bytes of the reports of some steps."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_a_short_file_that_imports_no_neighbour(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in imports if isinstance(node, ast.ImportFrom)}
    assert not {module.split(".")[-1] for module in modules} & {neighbour.stem for neighbour in FILES}
    assert not any(module.startswith("examples") for module in modules)


# A checkpoint of Orbax takes a second, and there are some in three runs.
@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_run_that_was_interrupted_continues_with_the_same_losses(
    example: str, oxe_root: Path, frames_root: Path, tmp_path: Path
) -> None:
    if example in ("train_world_model", "train_policy"):
        oxe_root = frames_root
    full, parts = tmp_path / "whole", tmp_path / "parts"
    code, output, errors = _run(example, oxe_root, full, "--steps", "40")
    assert code == 0, errors
    assert "s waited for data" in output and "that of predicting" in output and "starts at step 0;" in errors
    code, errors = _interrupt(example, oxe_root, parts, "--steps", "40", "--every", "2")
    assert code == 130, errors
    assert "--resume continues" in errors and "Traceback" not in errors
    assert 0 < len(_losses(example, parts)) < 40
    code, output, errors = _run(example, oxe_root, parts, "--steps", "40", "--resume")
    assert code == 0 and "starts at step 0;" not in errors, errors
    losses = _losses(example, parts)
    assert losses == _losses(example, full)
    assert (parts / "loader.json").read_text() == (full / "loader.json").read_text()
    # At its start the model says about what the baseline says, then it learns more.
    assert losses[0][0] == pytest.approx(losses[0][1], rel=0.1)
    assert sum(loss for loss, _ in losses[-8:]) < 0.97 * sum(still for _, still in losses[-8:])


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_root_that_cannot_be_read_is_one_line_of_error_and_a_cache_can_be_given(example: str, tmp_path: Path) -> None:
    for root, message in (
        (tmp_path / "nowhere", f"error: {tmp_path}/nowhere: no such folder"),
        (Path("s3://a bucket/oxe"), "error: s3://a bucket/oxe: expected a folder"),
    ):
        code, _, errors = _run(example, root, tmp_path / "out", "--cache", f"{tmp_path}/cache:1GB")
        assert (code, errors.splitlines()[-1][: len(message)]) == (1, message) and "Traceback" not in errors


@pytest.mark.long
@pytest.mark.parametrize("example", [_needs("own_data")])
def test_own_data_goes_from_drawn_recordings_to_a_policy_and_continues(example: str, tmp_path: Path) -> None:
    full, parts = tmp_path / "whole", tmp_path / "parts"
    for out, steps, more in ((full, "60", ()), (parts, "30", ()), (parts, "60", ("--resume",))):
        code, output, errors = _finish(_start(f"examples/{example}.py", "--out", str(out), "--steps", steps, *more))
        assert code == 0, errors
        assert f"step {steps}: loss " in output
    losses = _losses(example, parts)
    assert losses == _losses(example, full)
    assert sum(loss for loss, _ in losses[-8:]) < 0.7 * sum(mean for _, mean in losses[-8:])
