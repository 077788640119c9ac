"""Features are those of all episodes that are looked at; what differs or is missing is named, and limits hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.errors import EXIT_DAMAGED, EXIT_USAGE, CorruptFrame, MalformedEpisode, SourceError
from convert.picture import decode_frame
from convert.source.features import Feature, merge_features
from convert.source.files.plain import PlainEpisode, infer_features
from convert.source.kinds import find_source
from convert.source.python.dataset import flatten
from tests.fixtures.arrays.converted import config, convert, episodes, opened
from tests.fixtures.arrays.written import h5py, jpeg, scene


def write(path: Path, demos: list[dict[str, Any]]) -> str:
    """Write demos of robomimic; returns the source."""
    with h5py.File(path, "w") as file:
        for number, arrays in enumerate(demos):
            steps = 3 if arrays.get("actions") is None else len(arrays["actions"])
            for name, value in {"obs/front": scene(max(steps, 1), seed=number), **arrays}.items():
                if value is not None:
                    file[f"data/demo_{number}/{name}"] = value
            file.require_group(f"data/demo_{number}/obs")
    return f"robomimic:{path}"


def listed(out: Path, name: str = "a") -> list[tuple[str, int]]:
    lines = (out / name / "1.0.0" / "quarantine.jsonl").read_text().splitlines()
    return [(row["reason"], row["episode"]) for row in map(json.loads, lines)]


def test_states_that_differ_are_left_out_and_named_and_actions_keep_the_shape_of_most(tmp_path: Path) -> None:
    demos = [{"actions": np.ones((3, width)), "states": np.ones((3, 5 + width))} for width in (3, 2, 2)]
    source = write(tmp_path / "a.hdf5", demos)
    assert convert(source, tmp_path / "out") == EXIT_DAMAGED
    assert listed(tmp_path / "out") == [("malformed", 0)]
    result = episodes(opened(tmp_path / "out", "a"))
    assert [item["status"] for item in result][1:] == ["ok"] * 2 and "states" not in result[1]["rows"][0]
    assert "states is float64 (8,), float64 (7,)" in " ".join(find_source(source, [], {}).remarks)


def test_a_feature_that_the_first_episode_lacks_is_a_column_or_listed_where_nobody_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = {"actions": np.ones((3, 2))}
    source = write(tmp_path / "a.hdf5", [actions, {**actions, "reward": np.arange(3.0)}])
    assert convert(source, tmp_path / "out") == 0
    result = episodes(opened(tmp_path / "out", "a"))
    assert [row["reward"] for item in result for row in item["rows"]] == [None, None, None, 0, 1, 2]
    monkeypatch.setattr("convert.source.arrays.dataset.ArraysKind.sampled_episodes", 1)
    assert convert(source, tmp_path / "few") == 0
    assert listed(tmp_path / "few") == [("unknown_feature", 1)]
    assert [item["status"] for item in episodes(opened(tmp_path / "few", "a"))] == ["ok", "ok"]


@pytest.mark.parametrize("files", [1, 4])
def test_the_episodes_that_are_looked_at_come_from_all_over_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    monkeypatch.setattr("convert.source.arrays.dataset.ArraysKind.sampled_episodes", 2)
    encoded = [jpeg(picture) for picture in scene(3, seed=1)]
    rows = np.array([list(data.ljust(max(map(len, encoded)), b"\0")) for data in encoded], np.uint8)
    demos: list[dict[str, Any]] = [{"actions": np.ones((3, 2))} for _ in range(4)]
    demos[2]["obs/wrist"] = rows
    for number in range(files):
        write(tmp_path / f"{number}.hdf5", demos if files == 1 else demos[number : number + 1])
    assert find_source(f"robomimic:{tmp_path}", [], {}).features["steps/obs/wrist"].kind == "image"


@pytest.mark.parametrize("kind", ["robomimic", "arrays"])
def test_one_observation_more_than_actions_is_left_out_and_named(tmp_path: Path, kind: str) -> None:
    demo = {"obs/front": scene(4, seed=1), "obs/pos": np.arange(12.0).reshape(4, 3), "actions": np.ones((3, 2))}
    write(tmp_path / "a.hdf5", [demo])
    text = f"source: {kind}:{tmp_path / 'a.hdf5'}\nlayout: {{episodes: data/*}}"
    assert convert("a", tmp_path / "out", *config(tmp_path / "a.yaml", "a", text)) == 0
    (result,) = episodes(opened(tmp_path / "out", "a"))
    assert [row["obs/pos"][0] for row in result["rows"]] == [0, 3, 6] and len(result["frames"]["front"]) == 3
    assert result["rows"][2]["actions"] == [1, 1]
    remarks = find_source(f"{kind}:{tmp_path / 'a.hdf5'}", [], {"episodes": "data/*"}).remarks
    assert "have a value after the last action, which is left out: obs/front, obs/pos" in remarks


def test_a_first_episode_without_steps_and_a_column_without_values_refuse_nothing(tmp_path: Path) -> None:
    empty = {"obs/front": scene(3, seed=0)[:0], "actions": np.ones((0, 2)), "nothing": np.ones((0, 0))}
    source = write(tmp_path / "a.hdf5", [empty, {"actions": np.ones((3, 2)), "nothing": np.ones((3, 0))}])
    assert convert(source, tmp_path / "out") == 0
    assert [item["status"] for item in episodes(opened(tmp_path / "out", "a"))] == ["empty", "ok"]
    assert "without values, so left out: nothing" in find_source(source, [], {}).remarks


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("obs/front", (3, 40_000, 40_000, 3), "u1"), ("obs/huge", (3, 1 << 40), "f8"), ("obs/rows", (3, 1 << 40), "u1")],
)
def test_an_array_of_impossible_size_is_one_listed_episode_or_one_error_before_memory_is_taken(
    tmp_path: Path, name: str, shape: tuple[int, ...], dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "a.hdf5", [{"actions": np.ones((3, 2)), name: None}, {"actions": np.ones((3, 2))}])
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file.create_dataset(f"data/demo_0/{name}", shape, dtype, chunks=(1, *(min(side, 64) for side in shape[1:])))
    code = convert(source, tmp_path / "out")
    if code == EXIT_USAGE:
        assert f"{name} is " in capsys.readouterr().err
    else:
        assert listed(tmp_path / "out") == [("malformed", 0)]


def test_an_episode_that_claims_too_many_steps_is_listed(tmp_path: Path) -> None:
    source = write(tmp_path / "a.hdf5", [{"actions": np.ones((3, 2))}, {"obs/front": None, "actions": None}])
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file.create_dataset("data/demo_1/actions", (1 << 40, 2), "f8", chunks=(64, 2))
    assert convert(source, tmp_path / "out") == EXIT_DAMAGED
    assert listed(tmp_path / "out") == [("malformed", 1)]


def test_arrays_of_too_many_pixels_or_with_channels_first_are_no_pictures() -> None:
    huge = np.broadcast_to(np.zeros((), np.uint8), (1, 30_000, 30_000, 3))
    with pytest.raises(MalformedEpisode, match="steps/front has pictures of 30000x30000, more than"):
        infer_features(PlainEpisode({"front": huge}, {}))
    with pytest.raises(CorruptFrame, match="claims 30000x30000"):
        decode_frame(huge[0])
    with pytest.raises(CorruptFrame, match="raw frame has 64 channels, expected 1 to 4"):
        decode_frame(np.zeros((3, 64, 64), np.uint8))


def test_types_of_several_episodes_become_one_that_holds_them_all() -> None:
    def feature(dtype: str, shape: tuple[int, ...] = (2,), kind: Any = "tensor") -> dict[str, Feature]:
        return {"steps/x": Feature(path="steps/x", kind=kind, level="step", shape=shape, dtype=dtype)}

    merged, remarks = merge_features([feature("int32"), feature("float32"), feature("bool")])
    assert merged["steps/x"].dtype == "float64" and not merged["steps/x"].varies and not remarks
    merged, _ = merge_features([feature("uint8", (4, 6, 3), "image"), feature("uint8", (8, 6, 3), "image")])
    assert merged["steps/x"].shape == (None, 6, 3) and not merged["steps/x"].varies
    merged, _ = merge_features([feature("string", ()), feature("int64", ()), feature("int64", ())])
    assert merged["steps/x"].dtype == "int64" and merged["steps/x"].varies


def test_pictures_come_as_lists_of_arrays_and_arrays_of_bytes_too() -> None:
    pictures = scene(3, seed=1)
    data = [jpeg(item) for item in pictures]
    steps = {"list": list(pictures), "objects": np.array(data, object), "fixed": np.array(data)}
    result = infer_features(PlainEpisode(flatten(steps, context="steps"), {}))
    assert [item.kind for item in result.values()] == ["image"] * 3


def test_arrays_beside_pictures_in_files_name_these_and_a_function(tmp_path: Path) -> None:
    source = write(tmp_path / "a.hdf5", [{"actions": np.ones((3, 2)), "obs/front": None}])
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "front.mp4").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"such as videos/front.mp4, are not read: .*python:FILE.py:FUNCTION"):
        find_source(source.replace("a.hdf5", ""), [], {})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((3, 3, 32, 32), np.uint8), "{channels_first: true}"),
        (np.zeros((3, 3, 32, 32), np.float32), "{channels_first: true, floats: 255}}`, or floats: 1"),
    ],
)
def test_pictures_in_another_form_say_what_to_write(tmp_path: Path, values: np.ndarray, message: str) -> None:
    source = write(tmp_path / "a.hdf5", [{"actions": np.ones((3, 2)), "obs/front": values}])
    with pytest.raises(SourceError) as raised:
        find_source(source, [], {})
    assert f"pictures: {{obs/front: {message}" in str(raised.value)
