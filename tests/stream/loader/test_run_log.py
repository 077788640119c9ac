"""A loader tells a log of the run how it goes, and the batches do not change by it."""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stream import ArgumentError, Frames, Loader, digest, make_loader
from tests.fixtures.command import REPOSITORY

WEIGHTS = {"bridge": 3, "viola": 1}


def loader_of(root: Path, **arguments: Any) -> Loader:
    return make_loader(root, WEIGHTS, batch_size=8, **arguments)


def logged(loader: Loader, steps: int, *, every: int) -> dict[int, dict[str, float]]:
    """Figures by step, of a function that a loader logs to."""
    figures: dict[int, dict[str, float]] = {}
    loader.log_to(figures.__setitem__, every=every)
    with closing(iter(loader)) as batches:
        for _ in range(steps):
            next(batches)
    return figures


def test_a_function_gets_the_figures_of_every_few_steps(oxe_root: Path) -> None:
    loader = loader_of(oxe_root)
    sent = logged(loader, 12, every=5)
    assert list(sent) == [4, 9]
    figures = sent[9]
    assert 0 <= figures["loader/waiting_share"] <= 1
    assert figures["loader/samples_per_s"] > 0
    assert figures["loader/replaced_rows"] == figures["loader/masked_rows"] == 0
    assert [figures[f"loader/weight/{name}"] for name in WEIGHTS] == [0.75, 0.25]
    assert [figures[f"loader/share/{name}"] for name in WEIGHTS] == [0.75, 0.25]
    # 80 samples so far, of which three quarters are of the first dataset.
    assert figures["loader/epoch/bridge"] == pytest.approx(60 / loader.sizes["bridge"])
    assert figures["loader/epoch/viola"] == pytest.approx(20 / loader.sizes["viola"])


def test_batches_and_states_are_those_of_a_loader_without_a_log(oxe_root: Path) -> None:
    plain, watched = loader_of(oxe_root), loader_of(oxe_root)
    watched.log_to(lambda step, figures: None, every=2)
    with closing(iter(plain)) as plain_batches, closing(iter(watched)) as watched_batches:
        for _ in range(5):
            assert digest(next(plain_batches)) == digest(next(watched_batches))
            assert plain_batches.get_state() == watched_batches.get_state()


def test_after_a_state_is_set_the_figures_are_of_the_steps_since(oxe_root: Path) -> None:
    loader = loader_of(oxe_root)
    figures: dict[int, dict[str, float]] = {}
    loader.log_to(figures.__setitem__, every=4)
    with closing(iter(loader)) as batches:
        batches.set_state(loader.state_at(102))
        for _ in range(3):
            next(batches)
    assert list(figures) == [103]
    assert figures[103]["loader/epoch/bridge"] == pytest.approx(104 * 6 / loader.sizes["bridge"], rel=0.01)


def test_one_rank_logs_the_samples_of_all(oxe_root: Path) -> None:
    ranks = [loader_of(oxe_root).with_ranks(rank, 2) for rank in (0, 1)]
    first, second = (logged(loader, 4, every=4) for loader in ranks)
    assert second == {}
    assert first[3]["loader/share/bridge"] == 0.75


def test_a_loader_that_finds_its_ranks_later_logs_too(oxe_root: Path) -> None:
    loader = loader_of(oxe_root)
    assert list(logged(loader, 2, every=2)) == [1]
    assert len(loader.with_ranks(0, 2).counters.watchers) == 1


def test_rows_with_frames_that_do_not_exist_are_counted(frames_root: Path) -> None:
    loader = make_loader(frames_root, "bridge", batch_size=8, frames=Frames([-3, 0], edges="repeat"))
    figures = logged(loader, 4, every=4)
    masked = sum(int((~loader.batch_at(step)["frames_mask"].all(axis=1)).sum()) for step in range(4))
    assert figures[3]["loader/masked_rows"] == masked > 0


def test_a_target_that_fails_ends_the_log_and_not_the_training(
    oxe_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(step: int, figures: dict[str, float]) -> None:
        raise RuntimeError("no server")

    loader = loader_of(oxe_root)
    loader.log_to(fail, every=2)
    with caplog.at_level(logging.WARNING, "stream"), closing(iter(loader)) as batches:
        for _ in range(7):
            next(batches)
        assert batches.step == 7
    assert caplog.text.count("nothing more is logged, as the target failed at step 1: RuntimeError('no server')") == 1


def test_another_target_is_refused_at_once(oxe_root: Path) -> None:
    loader = loader_of(oxe_root)
    for target in (json, "wandb", 3, dict):
        with pytest.raises(ArgumentError, match=r"log_to: .*(expected a run|give the run)"):
            loader.log_to(target)
    with pytest.raises(ArgumentError, match="every=0; expected a whole number >= 1"):
        loader.log_to(print, every=0)
    loader.log_to(None)
    assert loader.counters.watchers == []


TRAINING = """
import sys
import stream
{begin}
loader = stream.make_loader(sys.argv[1], {{"bridge": 3, "viola": 1}}, batch_size=8)
loader.log_to(run, every=5)
batches = iter(loader)
for step in range(20):
    batch = next(batches)
    {statements}
batches.close()
{end}
"""


def train(root: Path, folder: Path, *, begin: str, end: str, statements: str = "pass", **variables: str) -> None:
    """Run a training script in a process of its own, without a network that answers."""
    code = TRAINING.format(begin=begin, end=end, statements=statements)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(REPOSITORY), **variables}
    environment["WANDB__SERVICE_WAIT"] = "300"
    command = [sys.executable, "-c", code, str(root)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_run_of_tensorboard_has_the_figures(oxe_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    begin = "from torch.utils.tensorboard import SummaryWriter\nrun = SummaryWriter('runs')"
    train(oxe_root, tmp_path, begin=begin, end="run.close()")
    events = reader.EventAccumulator(str(tmp_path / "runs")).Reload()
    shares = events.Scalars("loader/share/bridge")
    assert [(event.step, event.value) for event in shares] == [(step, 0.75) for step in (4, 9, 14, 19)]


def logged_records(content: bytes) -> Iterator[bytes]:
    """Records of a file of wandb: a log of LevelDB, in blocks of 32 kB, after 7 bytes."""
    offset, record = 7, b""
    while offset + 7 <= len(content):
        if (left := -offset % 32768) < 7 and left:
            offset += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, offset)
        record += content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        # Of a record in parts, the first and those in the middle.
        if kind not in (2, 3):
            yield record
            record = b""


@pytest.mark.long
@pytest.mark.parametrize("statements", ["pass", "run.log({'loss': step})", "run.log({'loss': step}, step=step)"])
def test_a_run_of_wandb_has_the_figures_and_loses_none_of_the_script(
    statements: str, oxe_root: Path, tmp_path: Path
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    parse: Any = wandb_internal_pb2.Record.FromString  # type: ignore[attr-defined]
    begin = "import wandb\nrun = wandb.init(project='pairs', mode='offline')"
    train(oxe_root, tmp_path, begin=begin, end="run.finish()", statements=statements, WANDB_SILENT="true")
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for record in map(parse, logged_records(path.read_bytes())):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    loader_rows = [row for row in rows if "loader/step" in row]
    assert [row["loader/step"] for row in loader_rows] == [4, 9, 14, 19]
    assert {row["loader/share/bridge"] for row in loader_rows} == {0.75}
    assert [row["loss"] for row in rows if "loss" in row] == ([] if statements == "pass" else list(range(20)))


@pytest.mark.long
def test_a_run_of_trackio_has_the_figures(oxe_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    begin = "import trackio\nrun = trackio.init('pairs')"
    train(oxe_root, tmp_path, begin=begin, end="trackio.finish()", TRACKIO_DIR=str(tmp_path), HF_HUB_OFFLINE="1")
    with sqlite3.connect(tmp_path / "pairs.db") as database:
        rows = database.execute("select step, metrics from metrics order by step").fetchall()
    figures = [(step, json.loads(metrics)["loader/share/bridge"]) for step, metrics in rows]
    assert figures == [(step, 0.75) for step in (4, 9, 14, 19)]
