"""Batches without frames: those of the same samples with frames, but for the keys of frames; no record is read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Frames, Loader, Select, Vector, digest, load_loader, make_loader

ARGUMENTS: dict[str, Any] = {"batch_size": 16, "seed": 3, "action": 4, "columns": ["reward"]}
MIXTURE = {"bridge": 1, "kuka": 2}


def test_the_other_keys_are_those_of_batches_with_frames(frames_root: Path) -> None:
    arguments = {**ARGUMENTS, "select": Select(where=[("step", "<", 6)])}
    plain = make_loader(frames_root, MIXTURE, frames=None, **arguments)
    shown = make_loader(frames_root, MIXTURE, frames=Frames([0], edges="repeat"), **arguments)
    assert plain.sizes == shown.sizes
    for step in (0, 7):
        batch, expected = plain.batch_at(step), shown.batch_at(step)
        assert expected.keys() - batch.keys() == {"frames", "frames_mask", "frame_step"}
        for key, values in batch.items():
            np.testing.assert_array_equal(values, expected[key])


def test_no_record_is_read_and_a_root_without_its_shards_serves(frames_root: Path, tmp_path: Path) -> None:

    root = tmp_path / "root"
    shutil.copytree(frames_root / "bridge", root / "bridge", ignore=shutil.ignore_patterns("*.arrayrecord"))
    loader = make_loader(root, "bridge", frames=None, **ARGUMENTS)
    assert digest(loader.batch_at(2)) == digest(
        make_loader(frames_root, "bridge", frames=None, **ARGUMENTS).batch_at(2)
    )


@pytest.mark.parametrize("layout", ["pairs", "frames"])
def test_workers_ranks_and_a_saved_loader(layout: str, oxe_root: Path, frames_root: Path, tmp_path: Path) -> None:
    root = oxe_root if layout == "pairs" else frames_root

    def open_loader(**more: Any) -> Loader:
        return make_loader(root, MIXTURE, frames=None, normalize="q01_q99", **{**ARGUMENTS, **more})

    loader = open_loader()
    loader.save(tmp_path / "loader.json")
    expected = [digest(loader.batch_at(step)) for step in range(3)]
    assert [digest(batch) for batch in open_loader(num_workers=2, num_steps=3)] == expected
    assert [digest(load_loader(tmp_path / "loader.json").batch_at(step)) for step in range(3)] == expected
    halves = [open_loader(rank=rank, world_size=2).batch_at(1)["action"] for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate(halves), loader.batch_at(1)["action"])
    assert loader.describe(0)[0].dataset in MIXTURE and loader.spec.frames is None


def test_intervals_between_no_frames_are_an_error(frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match="there are no frames"):
        make_loader(frames_root, "bridge", batch_size=4, frames=None, action=Vector(between="frames"))
