"""Synthetic roots and their measurement, at the smallest size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.scale.command import main
from bench.synthetic import DATASETS, EPISODE_PAIRS, OFFSET, Scale, make_root
from stream import make_loader
from stream.format.manifest import read_manifest
from stream.format.names import table_file
from stream.format.table import hash_column, open_table
from tests.bench.conftest import Refused


@pytest.fixture(scope="module")
def scale() -> Scale:
    return Scale(records=DATASETS * 3 * EPISODE_PAIRS, shards=DATASETS * 3)


@pytest.fixture(scope="module")
def root(scale: Scale, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale") / "root"
    make_root(folder, scale)
    return folder


@pytest.mark.parametrize(("asked", "shards"), [(1, 29), (10**6, 319), (6 * 10**7, 19_981)])
def test_sizes_are_near_what_is_asked(asked: int, shards: int) -> None:
    scale = Scale.of(asked)
    assert scale.shards == shards
    assert scale.records == pytest.approx(asked, rel=0.05) or asked < DATASETS * EPISODE_PAIRS


def test_every_record_of_every_shard_is_there_and_is_read(root: Path, scale: Scale) -> None:
    loader = make_loader(root, {"synthetic_07": 1}, batch_size=scale.records // DATASETS, shuffle="none")
    batch = loader.batch_at(0)
    assert loader.sizes == {"synthetic_07": scale.records // DATASETS}
    assert batch["frames"].shape == (3 * EPISODE_PAIRS, 2, 256, 256, 3)
    assert batch["step"].tolist() == list(range(EPISODE_PAIRS)) * 3
    assert batch["episode"].tolist() == np.repeat(np.arange(3), EPISODE_PAIRS).tolist()
    assert (batch["offset"] == OFFSET).all()
    # Frame t + offset of a pair is frame t of the pair that many steps later.
    assert np.array_equal(batch["frames"][0, 1], batch["frames"][OFFSET, 0])
    assert not np.array_equal(batch["frames"][0, 0], batch["frames"][0, 1])
    assert np.isfinite(batch["action"]).all() and batch["action_mask"].all()


def test_the_index_has_the_hashes_of_the_manifest(root: Path) -> None:
    folder = root / "synthetic_03" / "1.0.0" / "train"
    for kind, entry in read_manifest(folder.parent).splits["train"].index.items():
        table = open_table(folder / table_file(kind), kind, entry=entry)
        assert {name: hash_column(table.content, column) for name, column in table.columns.items()} == entry.columns


@pytest.mark.long
def test_the_command_measures_and_removes_its_roots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--records", "1", "--batches", "100", "--batch-size", "8", "--num-workers", "1", "--repeat", "1"]
    size += ["--subjects", "labels,loader,index,chunks"]
    folders = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"), "--json"]
    assert main([*size, *folders]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "out" / "scale.json").read_text()) == printed
    assert list((tmp_path / "work").iterdir()) == []
    (point,) = printed["points"]
    figures = point["median"]
    assert (figures["records"], figures["shards"]) == (DATASETS * EPISODE_PAIRS, DATASETS)
    assert point["error"] is None
    assert all(
        figures[key] > 0
        for key in (
            "open_s",
            "first_batch_s",
            "plan_ms",
            "batch_cpu_ms",
            "resume_s",
            "cold_rate",
            "merge_s",
            "label_s",
            "chunks_s",
        )
    )
    # Chunks are cut at the end of the episode.
    steps = EPISODE_PAIRS + OFFSET
    assert figures["chunks_s"] > 0
    assert figures["chunk_values"] == DATASETS * sum(min(16, steps - step) for step in range(steps))
    assert 0 < figures["chunks_anonymous_bytes"] < figures["chunks_peak_bytes"]
    assert figures["worker_own_bytes"] > 2**22


@pytest.mark.parametrize(
    ("more", "code", "message"), [(("--records", "10,x"), 2, "found 'x'"), (("--work", "/proc/none"), 1, "/proc/none")]
)
def test_what_cannot_be_done_is_one_line(more: tuple[str, ...], code: int, message: str, refused: Refused) -> None:
    exit_code, line = refused(main, more)
    assert exit_code == code
    assert message in line
