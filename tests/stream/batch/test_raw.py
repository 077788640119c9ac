"""Raw frames: the pixels of the source, exactly, in both layouts."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from pairstream.view.tracks import open_tracks
from stream import Frames, make_loader
from stream.base.errors import ArgumentError
from stream.format.catalog import Catalog
from stream.format.frame import decode_frame
from stream.format.index import open_index
from tests.fixtures.command import run
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset

# A record of two frames of this size crosses four borders of blocks.
SIZE = (200, 320)
EPISODES = [demo_episode(9, seed=seed, size=SIZE) for seed in range(3)]
PIXELS = [[decode_frame(step["observation"]["image"]) for step in episode["steps"]] for episode in EPISODES]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("raw")
    dataset = write_dataset(folder / "source", splits={"train": [EPISODES[:2], EPISODES[2:]]})
    for layout in ("pairs", "frames"):
        options = ConvertConfig(layout=layout, policy=FramePolicy(size=None, codec="raw"))
        convert_dataset(dataset.conversion(folder / layout, options))
    return {layout: folder / layout for layout in ("pairs", "frames")}


def loader(root: Path, **options: Any) -> Any:
    return make_loader(root, "demo", **{"split": "train", "batch_size": 4, "seed": 3, "num_workers": 0, **options})


@pytest.mark.parametrize("workers", [0, 2])
def test_the_pixels_of_pairs_are_those_of_the_source(roots: dict[str, Path], workers: int) -> None:
    for batch in itertools.islice(loader(roots["pairs"], num_workers=workers), 8):
        for row, episode in enumerate(batch["episode"]):
            first, second = batch["step"][row], batch["step"][row] + batch["offset"][row]
            expected = [PIXELS[episode][first], PIXELS[episode][second]]
            np.testing.assert_array_equal(batch["frames"][row], expected)


def test_the_pixels_of_windows_are_those_of_the_source(roots: dict[str, Path]) -> None:
    # The same frame twice, one that is drawn, and repeated ones.
    windows = loader(roots["frames"], frames=Frames((-2, 0, 0, "1..3", "goal"), edges="repeat"))
    for step in range(8):
        batch = windows.batch_at(step)
        for row, episode in enumerate(batch["episode"]):
            for frame, frame_step in zip(batch["frames"][row], batch["frame_step"][row], strict=True):
                np.testing.assert_array_equal(frame, PIXELS[episode][frame_step])


def test_a_pair_of_which_one_frame_is_wanted_twice_and_at_two_sizes_is_read_too(roots: dict[str, Path]) -> None:
    batch = loader(roots["pairs"], frames=("offset", "offset")).batch_at(1)
    cameras = {"large": "primary", "small": "primary"}
    sizes = loader(roots["pairs"], frames=Frames(["offset"], cameras=cameras, size={"small": (20, 32)})).batch_at(1)
    for row, episode in enumerate(batch["episode"]):
        expected = PIXELS[episode][batch["step"][row] + batch["offset"][row]]
        np.testing.assert_array_equal(batch["frames"][row], [expected, expected])
        np.testing.assert_array_equal(sizes["frames/large"][row, 0], expected)
    assert sizes["frames/small"].shape[2:4] == (20, 32)


def test_a_damaged_record_of_raw_frames_is_replaced_as_any_other(roots: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(roots["pairs"], tmp_path / "copy")
    (shard, *_) = sorted((tmp_path / "copy").rglob("*.arrayrecord"))
    content = bytearray(shard.read_bytes())
    content[200_000] ^= 1
    shard.write_bytes(content)
    pairs = loader(tmp_path / "copy", on_error="replace")
    for step in range(4):
        batch = pairs.batch_at(step)
        for row, episode in enumerate(batch["episode"]):
            np.testing.assert_array_equal(batch["frames"][row, 0], PIXELS[episode][batch["step"][row]])
    result = run(str(tmp_path / "copy"), "--deep", module="pairstream verify")
    assert result.code == 1
    assert "does not read" in result.out


def test_the_device_decodes_no_raw_pixels(roots: dict[str, Path]) -> None:
    with pytest.raises(ArgumentError, match="demo has raw; take decode='host'"):
        loader(roots["pairs"], frames=Frames(decode="device"))


def test_an_export_has_jpegs_of_raw_frames(roots: dict[str, Path], tmp_path: Path) -> None:
    options = ("--dataset", "demo", "--output", str(tmp_path / "out"))
    result = run(str(roots["frames"]), *options, module="pairstream export")
    assert result.code == 0, result.err
    (table,) = (tmp_path / "out" / "data").rglob("*.parquet")
    for row in pq.read_table(table).to_pylist():
        pixels = PIXELS[row["episode_index"]][row["frame_index"]].astype(int)
        assert np.abs(decode_frame(row["observation.images.primary"]["bytes"]) - pixels).mean() < 2


@pytest.mark.parametrize("layout", ["pairs", "frames"])
def test_an_episode_is_seen_and_recorded_with_the_pixels_of_the_source(
    layout: str, roots: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("rerun", reason="needs the extra view")
    from pairstream.view.recording import save
    from tests.pairstream.view.recorded import read_recording

    dataset = Catalog(roots[layout]).open("demo")
    tracks = open_tracks(dataset, open_index(dataset, "train"), 1)
    assert save(tracks, tmp_path / "e.rrd") == []
    (track,) = tracks.cameras
    recorded = read_recording(tmp_path / "e.rrd")[f"/cameras/{track.camera.name}"]
    assert recorded["step"] == track.steps.tolist()
    for step, (buffer,) in zip(recorded["step"], recorded["Image:buffer"], strict=True):
        assert bytes(buffer) == PIXELS[1][step].tobytes()
        shown = decode_frame(track.read_picture(step)).astype(int)
        assert np.abs(shown - PIXELS[1][step]).mean() < 2
