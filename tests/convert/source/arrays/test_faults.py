"""Damaged and unsuitable files of arrays, and conversions of damaged ones."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.errors import EXIT_DAMAGED, ConfigError, SourceError, UsageError
from convert.source.kinds import find_source
from tests.fixtures.arrays import written as files
from tests.fixtures.arrays.converted import assert_equal, convert, episodes, opened
from tests.fixtures.command import run, tree

h5py = files.h5py


def left_out(out: Path, name: str) -> list[tuple[str, int, int | None, str]]:
    lines = (out / name / "1.0.0" / "quarantine.jsonl").read_text().splitlines()
    return [(row["reason"], row["episode"], row["step"], row["detail"]) for row in map(json.loads, lines)]


def test_a_truncated_file_is_one_damaged_episode_beside_whole_ones_and_an_error_alone(tmp_path: Path) -> None:
    written = files.write_aloha(tmp_path / "pour", compress=False)
    path = tmp_path / "pour" / "episode_1.hdf5"
    path.write_bytes(path.read_bytes()[:-1000])
    assert convert(f"aloha:{tmp_path / 'pour'}", tmp_path / "out") == EXIT_DAMAGED
    complete = [item for item in episodes(opened(tmp_path / "out", "pour")) if item["rows"]]
    assert_equal(complete, [written[0], written[2]])
    ((reason, _, _, detail),) = left_out(tmp_path / "out", "pour")
    assert reason == "unreadable" and re.match(r"episode_1.hdf5: cannot be read \(Unable to.*truncated", detail)
    files.write_robomimic(tmp_path / "lift.hdf5")
    (tmp_path / "lift.hdf5").write_bytes((tmp_path / "lift.hdf5").read_bytes()[:5000])
    with pytest.raises(SourceError, match=r"no episode can be read, .* lift.hdf5: cannot be read \(.*truncated file"):
        find_source(f"robomimic:{tmp_path / 'lift.hdf5'}", [], {})


def test_episodes_with_missing_ragged_and_wrong_arrays_are_quarantined_one_by_one(tmp_path: Path) -> None:
    written = files.write_robomimic(tmp_path / "lift.hdf5", lengths=[4, 4, 4, 4, 4, 4])
    with h5py.File(tmp_path / "lift.hdf5", "a") as file:
        changes = {
            "data/demo_2/obs/robot0_eef_pos": file["data/demo_2/obs/robot0_eef_pos"][:3],
            "data/demo_3/obs/robot0_eef_pos": np.zeros((4, 5)),
            "data/demo_4/obs/agentview_image": np.zeros((4, 48, 64, 3), np.int32),
        }
        for name in ("data/demo_1/actions", *changes):
            del file[name]
        for name, values in changes.items():
            file[name] = values
    assert convert(f"robomimic:{tmp_path / 'lift.hdf5'}", tmp_path / "out") == EXIT_DAMAGED
    result = left_out(tmp_path / "out", "lift")
    assert [item[:2] for item in result] == [("malformed", 1), ("malformed", 2), ("malformed", 3), ("malformed", 4)]
    message = [item[3] for item in result]
    assert "lift.hdf5: data/demo_1: has no array actions" in message[0]
    assert "obs/robot0_eef_pos has 3 values and" in message[1] and "has 4, expected one a step" in message[1]
    assert "steps/obs/robot0_eef_pos is float64 (5,), in other episodes it is float64 (3,)" in message[2]
    assert "steps/obs/agentview_image is int32 (4, 48, 64, 3), expected pixels of uint8" in message[3]
    complete = [item for item in episodes(opened(tmp_path / "out", "lift")) if item["rows"]]
    assert_equal(complete, [written[0], written[5]])


def test_numbers_keep_their_nan_and_a_float_picture_with_nan_is_a_hole_of_its_own(tmp_path: Path) -> None:
    import zarr

    files.write_replay(tmp_path / "a.zarr")
    root: Any = zarr.open_group(str(tmp_path / "a.zarr"), mode="r+")
    root["data/img"][2] = np.nan
    root["data/img"][6] = 300
    root["data/action"][1] = np.nan
    assert convert(f"diffusion_policy:{tmp_path / 'a.zarr'}", tmp_path / "out") == EXIT_DAMAGED
    result = left_out(tmp_path / "out", "a")
    assert [item[:3] for item in result] == [("corrupt_frame", 0, 2), ("corrupt_frame", 1, 1)]
    assert "has values from 300 to 300, expected 0 to 255" in result[1][3]
    rows = episodes(opened(tmp_path / "out", "a"))[0]["rows"]
    assert np.isnan(rows[1]["action"]).all() and not np.isnan(rows[0]["action"]).any()


def test_a_chunk_that_does_not_decompress_is_a_hole_of_its_own_frames(tmp_path: Path) -> None:
    files.write_robomimic(tmp_path / "lift.hdf5", compression="gzip", chunks=(1, files.HEIGHT, files.WIDTH, 3))
    with h5py.File(tmp_path / "lift.hdf5") as file:
        position = file["data/demo_0/obs/agentview_image"].id.get_chunk_info(3)
    with (tmp_path / "lift.hdf5").open("r+b") as raw:
        raw.seek(position.byte_offset + 20)
        raw.write(b"\xff" * 40)
    assert convert(f"robomimic:{tmp_path / 'lift.hdf5'}", tmp_path / "out") == EXIT_DAMAGED
    assert [item[:3] for item in left_out(tmp_path / "out", "lift")] == [("corrupt_frame", 0, 3)]


def test_a_wrong_preset_says_what_is_missing_and_what_the_file_looks_like(tmp_path: Path) -> None:
    files.write_aloha(tmp_path / "pour", compress=False)
    files.write_robomimic(tmp_path / "lift.hdf5")
    files.write_replay(tmp_path / "a.zarr")
    for location, message in (
        ("robomimic:{}/pour", r"episode_0.hdf5: has no groups data/\*; it looks like aloha"),
        ("aloha:{}/lift.hdf5", r"lift.hdf5: has no array action; it looks like robomimic"),
        ("libero:{}/a.zarr", r"a.zarr: has no groups data/\*; it looks like diffusion_policy"),
    ):
        with pytest.raises(SourceError, match=message):
            find_source(location.format(tmp_path), [], {})


def test_a_path_that_a_layout_names_and_no_file_has_is_an_error(tmp_path: Path) -> None:
    files.write_aloha(tmp_path / "pour", compress=False)
    steps = {"action": "action", "state": "observations/joints", "front": "observations/images/cam_high"}
    with pytest.raises(SourceError, match=r"episode_0.hdf5: has no array observations/joints"):
        find_source(f"arrays:{tmp_path / 'pour'}", [], {"steps": steps})
    with pytest.raises(SourceError, match=r"no such file or folder"):
        find_source(f"arrays:{tmp_path / 'nowhere.hdf5'}", [], {})


@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        ({"episode": "data/*"}, r"layout: unknown key 'episode'; did you mean 'episodes'"),
        ({"pictures": {"a": {"rotation": 180}}}, r"layout: pictures.a: unknown key 'rotation'; did you mean 'rotate'"),
        ({"pictures": {"a": {"rotate": 45}}}, r"a.rotate: Input should be 0, 90, 180 or 270, found 45"),
        ({"language": {"path": "a", "text": "b"}}, r"layout: language.0: expected one of path, file and text"),
        ({"language": {"file": "demo"}}, r"layout: language.0.file: has 0 groups in parentheses, expected one"),
        ({"episodes": "data/*", "ends": "ends"}, r"layout: has episodes \(a group each\) and ends"),
        ({"splits": {"masks": "mask"}}, r"layout: splits.masks name groups of episodes, so expected `episodes`"),
    ],
)
def test_a_layout_that_is_not_valid_names_the_key_and_the_fault(layout: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        find_source("arrays:/nowhere", [], layout)


def test_float_pictures_that_nobody_declared_are_not_guessed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "own.hdf5", "w") as file:
        file["front"] = np.zeros((4, 32, 32, 3), np.float32)
        file["action"] = np.zeros((4, 2))
    message = r"has no pictures.*if front, float32 \(32, 32, 3\), is one, write in the layout"
    with pytest.raises(SourceError, match=message):
        find_source(f"arrays:{tmp_path / 'own.hdf5'}", [], {})


@pytest.mark.parametrize(("library", "extra", "name"), [("h5py", "hdf5", "lift.hdf5"), ("zarr", "zarr", "a.zarr")])
def test_a_missing_library_is_one_sentence_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str, name: str
) -> None:
    if library == "h5py":
        files.write_robomimic(tmp_path / name)
    else:
        files.write_replay(tmp_path / name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=rf"needs {library}, which is not installed; install pairstream\[{extra}\]"):
        find_source(f"robomimic:{tmp_path / name}", [], {})


def test_chunks_of_jpeg_xl_without_imagecodecs_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from numcodecs.registry import codec_registry

    files.write_umi(tmp_path / "cup.zarr.zip")
    monkeypatch.setitem(sys.modules, "imagecodecs.numcodecs", None)
    monkeypatch.delitem(codec_registry, "imagecodecs_jpegxl")
    with pytest.raises(UsageError, match=r"needs imagecodecs, which is not installed; install pairstream\[zarr\]"):
        find_source(f"umi:{tmp_path / 'cup.zarr.zip'}", [], {})


@pytest.mark.long
def test_a_changed_chunk_of_a_zarr_folder_with_damage_is_converted_again(tmp_path: Path) -> None:
    files.write_replay(tmp_path / "own.zarr", chunk=1)
    chunk = tmp_path / "own.zarr" / "data" / "img" / "2.0.0.0"
    complete = chunk.read_bytes()
    chunk.write_bytes(complete[:10] + b"\xff" * 20)
    command = ["--datasets", f"diffusion_policy:{tmp_path / 'own.zarr'}", "--output", str(tmp_path / "out")]
    command += ["--layout", "frames", "--image-size", "native", "--num-workers", "1"]
    damaged = run(*command)
    assert "corrupt frame 1" in damaged.out + damaged.err
    chunk.write_bytes(complete)
    mended = run(*command)
    assert mended.code == 0, mended.err
    fresh = run(*command[:2], "--output", str(tmp_path / "fresh"), *command[4:])
    assert fresh.code == 0 and tree(tmp_path / "fresh") == tree(tmp_path / "out")
