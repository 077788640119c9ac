"""The tracks of an episode are what the source of a loader's batches says, in both layouts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg

from pairstream.view.tracks import Band, Lane, Tracks, open_tracks
from stream import Frames, make_loader
from stream.base.depth_colours import colour_depth
from stream.base.errors import ArgumentError, FormatError
from stream.format.catalog import Catalog
from stream.format.index import open_index
from tests.fixtures.command import flip
from tests.stream.crafted_root import CraftedRoot


def tracks_of(root: Path, name: str, episode: int) -> Tracks:
    dataset = Catalog(root).open(name)
    return open_tracks(dataset, open_index(dataset, "train"), episode)


@pytest.fixture(params=["oxe_root", "frames_root"])
def root(request: pytest.FixtureRequest) -> Path:
    root_path: Path = request.getfixturevalue(request.param)
    return root_path


@pytest.mark.parametrize("name", ["droid", "rt1", "language_table"])
def test_stored_frames_decode_to_those_of_the_loader(root: Path, name: str) -> None:
    tracks = tracks_of(root, name, 1)
    cameras = [track.camera.name for track in tracks.cameras]
    loader = make_loader(root, name, batch_size=1, frames=Frames(None if "oxe" in root.name else [0], cameras=cameras))
    for track in tracks.cameras:
        expected = loader.episode(name, 1).cameras[f"frames/{track.camera.name}"]
        assert track.steps.tolist() == expected.steps.tolist()
        for step, frame in zip(expected.steps.tolist(), expected.frames, strict=True):
            np.testing.assert_array_equal(simplejpeg.decode_jpeg(track.read(step)), frame)


def test_curves_have_names_and_the_values_of_the_index(root: Path) -> None:
    tracks = tracks_of(root, "droid", 1)
    table = make_loader(root, "droid", batch_size=1).episode("droid", 1).table
    curves = {curve.name: curve for curve in tracks.curves()}
    for name in ("action", "state", "action_oxe", "state_joint", "motion", "reward"):
        stored = np.stack(table[name].to_numpy())
        np.testing.assert_array_equal(curves[name].values, stored.reshape(len(stored), -1).astype(np.float64))
        assert curves[name].values.shape == (tracks.steps, len(curves[name].dims))
    assert curves["action"].dims == make_loader(root, "droid", batch_size=1).action_names["droid"]
    assert curves["action_joint"].dims[:2] == ("joint_1", "joint_2")
    assert list(curves)[:2] == ["action", "state"]
    assert {curve.group for curve in curves.values()} == {"action", "state", "column"}


def crafted_tracks(oxe_root: Path, tmp_path: Path, column_name: str, values: Callable[[int], pa.Array]) -> Tracks:
    """Return the first episode of bridge with a further column after the instruction, with values of n steps."""
    crafted = CraftedRoot(oxe_root, tmp_path / "root")
    steps = crafted.table("steps")
    column = values(len(steps))
    position = steps.schema.get_field_index("language") + 1
    crafted.write("steps", steps.add_column(position, pa.field(column_name, column.type, nullable=True), column))
    return tracks_of(crafted.root, "bridge", 0)


def test_texts_and_flags_are_runs_of_equal_values(oxe_root: Path, tmp_path: Path) -> None:
    def texts(count: int) -> pa.Array:
        words = [None if step % 9 in (3, 4) else "near" if step % 9 < 3 else "far" for step in range(count)]
        return pa.array(words, pa.large_string()).dictionary_encode()

    tracks = crafted_tracks(oxe_root, tmp_path, "observation/subtask", texts)
    lanes = {lane.name: lane for lane in tracks.lanes()}
    assert lanes["observation/subtask"].bands[:2] == (Band(0, 3, "near"), Band(5, 9, "far"))
    assert lanes["is_first"] == Lane("is_first", (Band(0, 1, "true"), Band(1, tracks.steps, "false")))
    assert [band.text for band in lanes["language"].bands] == [tracks.facts["language"]]


def test_a_flag_without_a_value_has_no_band(oxe_root: Path, tmp_path: Path) -> None:
    tracks = crafted_tracks(oxe_root, tmp_path, "touched", lambda count: pa.array([True, None, *[False] * (count - 2)]))
    (lane,) = (lane for lane in tracks.lanes() if lane.name == "touched")
    assert lane.bands == (Band(0, 1, "true"), Band(2, tracks.steps, "false"))


def test_a_number_without_a_value_is_nan(oxe_root: Path, tmp_path: Path) -> None:
    tracks = crafted_tracks(oxe_root, tmp_path, "score", lambda count: pa.array([None, 2, *[3] * (count - 2)]))
    (score,) = (curve for curve in tracks.curves() if curve.name == "score")
    assert np.isnan(score.values[0, 0])
    assert score.values[1:3, 0].tolist() == [2, 3]


def test_facts_are_the_columns_of_the_episode(frames_root: Path) -> None:
    facts = tracks_of(frames_root, "droid", 2).facts
    assert facts["episode_id"].endswith("__0") or "__" in facts["episode_id"]
    assert facts["num_steps"] == tracks_of(frames_root, "droid", 2).steps
    assert facts["success"] in (True, False, None)
    assert "first_record" not in facts


def test_what_does_not_exist_is_one_sentence(root: Path) -> None:
    with pytest.raises(ArgumentError, match="dataset bridge, split train: episode 99 of"):
        tracks_of(root, "bridge", 99)
    with pytest.raises(ArgumentError, match="no frame of step 1000 is stored"):
        tracks_of(root, "bridge", 0).camera(0).read(1000)
    with pytest.raises(ArgumentError, match="camera 7 of 1"):
        tracks_of(root, "bridge", 0).camera(7)


def test_a_damaged_frame_is_named_and_the_others_are_read(frames_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(frames_root / "bridge", root / "bridge")
    tracks = tracks_of(root, "bridge", 0)
    track = tracks.cameras[0]
    before = [track.read(step) for step in track.steps.tolist()]
    position = int(tracks.index.records.array("position")[track.records[3]])
    flip(Path(tracks.index.record_path(0)), position + 100)
    track = tracks_of(root, "bridge", 0).cameras[0]
    message = r"shard train-00000-of-\d+, record 3 \(step 3 of camera image\): cannot be read .*pairstream verify"
    with pytest.raises(FormatError, match=message):
        track.read(3)
    assert [track.read(step) for step in (0, 1, 2, 4)] == [before[step] for step in (0, 1, 2, 4)]


def test_depth_is_red_near_blue_far_and_black_where_nothing_was_measured() -> None:
    near, far, none = colour_depth(np.array([[500, 2000, 0]], np.uint16), (500, 2000))[0].tolist()
    assert near[0] > 2 * near[2]
    assert far[2] > far[0]
    assert none == [0, 0, 0]
