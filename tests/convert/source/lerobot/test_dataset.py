"""A LeRobot dataset described by itself: registry entry, splits, units of work, and clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convert.errors import SourceError, UsageError
from convert.registry.registry import Registry
from convert.source.describe import camera_names, camera_roles
from convert.source.lerobot.dataset import describe
from convert.source.lerobot.dataset import find as find_source
from convert.source.lerobot.episodes import EpisodeFiles, VideoPart, cut_units
from convert.source.lerobot.info import Info, file_name
from tests.convert.source.lerobot.reading import find
from tests.fixtures.datasets.lerobot_dataset import DATA, copy_dataset, edit_episodes, edit_info


def numbers(units: Any) -> list[list[int]]:
    return [[episode.number for episode in unit] for unit in units]


def test_a_dataset_describes_its_cameras_rate_robot_and_vectors() -> None:
    entry = find_source("demo/v3_av1/", [str(DATA)], {}).entry
    assert {name: (item["role"], item["shape"]) for name, item in entry["cameras"].items()} == {
        "front": ("primary", [48, 64, 3]),
        "left_wrist": ("wrist", [32, 48, 3]),
    }
    assert (entry["control_frequency"], entry["robot"], entry["splits"]) == (10, "so101", {"train": 7})
    assert entry["instruction"] == {"path": "task"}
    (action,), (state,) = entry["action"], entry["state"]
    assert (action["path"], action["dims"], action["names"]) == ("action", 3, ["x", "y", "gripper"])
    assert (state["path"], state["dims"], state["names"]) == ("observation.state", 4, ["j0", "j1", "j2", "grip"])


def test_a_dataset_describes_itself_alike_by_every_path_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA / "demo")
    locations = ["v3_images", "./v3_images/", "../demo/v3_images", str(DATA / "demo" / "v3_images")]
    entries = [find_source(location, (), {}).entry for location in locations]
    entries.append(find_source("demo/v3_images", [str(DATA)], {}).entry)
    assert all(entry == entries[0] for entry in entries)
    assert entries[0]["description"] == "LeRobot dataset v3_images, format v3.0."


CAMERAS: dict[tuple[str, ...], list[str]] = {
    ("observation.images.top", "observation.images.wrist_left"): ["primary", "wrist"],
    ("observation.images.cam_hand", "observation.images.laptop"): ["wrist", "primary"],
    ("images.image_0", "images.image_1", "images.image_2"): ["primary", "secondary", "other"],
    ("observation.images.gripper",): ["primary"],
    ("observation.images.left_wrist", "observation.images.right_wrist"): ["primary", "wrist"],
}


def make_info(cameras: tuple[str, ...], **more: Any) -> Info:
    features = {
        name: {"dtype": "video", "shape": [8, 8, 3], "names": ["height", "width", "channels"]} for name in cameras
    }
    fields = {"codebase_version": "v3.0", "fps": 10, "total_episodes": 3, "data_path": "d", "video_path": "v"}
    return Info.model_validate({**fields, "features": features, **more})


@pytest.mark.parametrize("cameras", CAMERAS, ids=lambda cameras: " ".join(name.split(".")[-1] for name in cameras))
def test_roles_of_cameras_follow_their_names(cameras: tuple[str, ...]) -> None:
    assert camera_roles(list(make_info(cameras).cameras)) == CAMERAS[cameras]


@pytest.mark.parametrize(
    ("cameras", "names"),
    [
        (("observation.images.top", "left.rgb", "right.rgb"), ["top", "left.rgb", "right.rgb"]),
        (("observation.images.左", "observation.images.右"), ["camera", "camera2"]),
        (("images.a b", "images.a_b"), ["a_b", "a_b2"]),
        (("images.a b", "images.a_b", "images.a_b2"), ["a_b", "a_b2", "a_b22"]),
        (("observation.images._front",), ["front"]),
        (("images._front", "images.front"), ["images._front", "images.front"]),
        (("観",), ["camera"]),
        (("top.", ".top", ".", ".."), ["top.", "top", "camera", "camera2"]),
    ],
)
def test_every_camera_has_a_valid_name_of_its_own(cameras: tuple[str, ...], names: list[str]) -> None:
    info = make_info(cameras)
    assert camera_names(list(info.cameras)) == dict(zip(names, cameras, strict=True))
    entry = describe(info, info.split_features()[0], dataset_name="demo", lengths_by_split={"train": [5]})
    assert list(Registry().describe("demo", entry).cameras) == names


@pytest.mark.parametrize(
    ("shape", "names"),
    [([48, 64, 3], ["height", "width", "channels"]), ([3, 48, 64], ["channels", "height"]), ([3, 48, 64], None)],
)
def test_the_size_of_a_camera_does_not_depend_on_the_order_of_its_shape(shape: list[int], names: Any) -> None:
    info = make_info((), features={"cam": {"dtype": "video", "shape": shape, "names": names}})
    assert info.cameras["cam"].size == (48, 64, 3)


def test_depth_and_unknown_features_are_left_out_and_said(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)

    def edit(info: dict[str, Any]) -> None:
        info["features"]["observation.images.left_wrist"]["info"]["video.is_depth_map"] = True
        info["features"]["observation.images.depth_top"] = info["features"]["observation.images.front"]
        info["features"]["language_events"] = {"dtype": "language", "shape": [1]}

    edit_info(folder, edit)
    source = find(folder)
    assert list(source.entry["cameras"]) == ["front"]
    reason = "a picture of depth, in 8 bits or colours"
    assert source.remarks[-1] == (
        f"not converted: observation.images.left_wrist ({reason}), observation.images.depth_top ({reason}), "
        "language_events (dtype language)"
    )


def test_a_feature_with_the_name_of_another_ones_column_is_left_out_and_said() -> None:
    number = {"dtype": "float32", "shape": [1]}
    result, remaining = make_info((), features={"action_": number, "action": number, "state_": number}).split_features()
    assert list(result) == ["episode_index", "steps/action", "steps/state_"]
    assert remaining == {"action_": "the column of action has this name; rename one"}


def test_units_are_the_files_of_the_camera_that_has_most_or_parquet_files() -> None:
    source = find_source("demo/v3_av1", [str(DATA)], {})
    assert numbers(source.units["train"]) == [[0, 1], [2, 3], [4, 5], [6]]
    assert [shard.name for shard in source.shards("train")][:2] == ["episodes-000000-000001", "episodes-000002-000003"]
    assert numbers(find_source("demo/v3_images", [str(DATA)], {}).units["train"]) == [[0, 1], [2, 3]]


def test_episodes_with_files_of_their_own_are_joined_to_runs() -> None:
    info = make_info(("a", "b"), codebase_version="v2.1")
    parts = [
        {key: VideoPart(name=f"{key}{n}", episode=n, start=0, stop=400, length=4000) for key in "ab"} for n in range(8)
    ]
    episodes = [EpisodeFiles(n, 4000, f"{n}.parquet", videos) for n, videos in enumerate(parts)]
    assert numbers(cut_units(episodes, info)) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_splits_are_those_of_the_metadata_and_cut_the_units(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    edit_info(folder, lambda info: info.update(splits={"train": "0:3", "val": "3:7"}))
    source = find(folder)
    assert source.splits == {"train": (2, 1), "val": (1, 2, 1)}
    for expression, message in (
        ("trian[:1]", r"episodes 'trian\[:1\]': no split 'trian', did you mean 'train'\? \(splits: train: "),
        ("train+3", r"no split '3', splits there: train, val \(splits: "),
        ("train[2]", r"episodes 'train\[2\]': not understood \(splits: train: "),
        ("train[1:99]", r"Requested slice \[1:99\] incompatible with "),
    ):
        with pytest.raises(UsageError, match=message):
            source.select_episodes(expression)
    assert source.select_episodes("train[1:]+val[:50%]") == {
        "train": {0: ((1, 2),), 1: ((0, 1),)},
        "val": {0: ((0, 1),), 1: ((0, 1),)},
    }


def test_a_dataset_without_splits_is_one_and_only_metadata_change_its_fingerprint(tmp_path: Path) -> None:
    folder = copy_dataset("v21_av1", tmp_path)
    edit_info(folder, lambda info: info.pop("splits"))
    before = find(folder)
    assert before.splits == {"train": (4,)}
    (folder / "data/chunk-000/episode_000000.parquet").unlink()
    assert find(folder).fingerprint == before.fingerprint
    tasks = folder / "meta/tasks.jsonl"
    tasks.write_text(tasks.read_text().replace("cube", "ball"))
    assert find(folder).fingerprint != before.fingerprint


@pytest.mark.parametrize(
    "splits",
    [
        *({"train": value} for value in ("0:99", "0:5", "3:2", "0", "-1:3", [0, 7])),
        {"train": "0:3", "val": "4:7"},
        {"train": "0:4", "val": "3:7"},
        {"train": "0:3", "../val": "3:7"},
        ["train"],
    ],
    ids=str,
)
def test_splits_that_do_not_cover_the_episodes_once_are_left_over_and_all_are_train(
    splits: Any, tmp_path: Path
) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    edit_info(folder, lambda info: info.update(splits=splits))
    source = find(folder)
    assert source.splits == {"train": (2, 2, 2, 1)}
    assert f"splits: {splits!r} does not fit, so all are train" in source.remarks


PATTERN = "meta/info.json: video_path is (None|''), but observation.images.front is a video"
INFO_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"codebase_version": "v1.6"}, "is a LeRobot dataset of 'v1.6'; this program reads v3.0, v2.1, v2.0"),
    ({"codebase_version": "v4.0"}, "is a LeRobot dataset of 'v4.0'; this program reads v3.0, v2.1, v2.0"),
    *(({"video_path": path}, PATTERN) for path in (None, "")),
    *((change, "meta/info.json: .*is this a LeRobot dataset") for change in ({"features": {"a": 1}}, {"fps": 0})),
]


@pytest.mark.parametrize(("change", "message"), INFO_FAULTS)
def test_an_info_that_cannot_be_used_is_an_error_that_names_the_fault(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    edit_info(folder, lambda info: info.update(change))
    with pytest.raises(SourceError, match=message):
        find(folder)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("meta/info.json", "lerobot:.*: no meta/info.json in"),
        ("meta/episodes/chunk-000/file-000.parquet", "meta/episodes: no parquet file; copy the whole folder"),
        ("meta/tasks.parquet", "meta/tasks.parquet: missing; copy the whole folder meta again"),
    ],
)
def test_metadata_that_are_cut_short_or_missing_are_an_error_that_names_the_file(
    file: str, message: str, tmp_path: Path
) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    (folder / file).write_bytes((folder / file).read_bytes()[:-20])
    with pytest.raises(SourceError, match=file):
        find(folder)
    (folder / file).unlink()
    with pytest.raises(SourceError, match=message):
        find(folder)


def faults(folder: Path) -> dict[int, str]:
    """Return why each episode that cannot be read cannot."""
    return {item.number: item.fault for unit in find(folder).units["train"] for item in unit if item.fault}


def test_episodes_that_no_file_lists_are_faults_and_the_others_stay(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    edit_episodes(folder, lambda rows: (rows.pop(), rows.pop(2)))
    lists = "meta/episodes does not list it, meta/info.json counts 7 episodes"
    assert faults(folder) == {number: f"episode {number}: {lists}" for number in (2, 6)}
    assert numbers(find(folder).units["train"]) == [[0, 1, 2], [3], [4, 5, 6]]


def test_a_row_that_comes_twice_counts_once_and_two_different_ones_are_a_fault(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    # More episodes than the info counts are all read.
    edit_info(folder, lambda info: info.update(total_episodes=3))
    edit_episodes(folder, lambda rows: rows.extend([dict(rows[1]), {**rows[3], "length": 9}]))
    assert faults(folder) == {3: "episode 3: meta/episodes lists it twice, differently"}
    assert find(folder).splits == {"train": (2, 2, 2, 1)}


def test_metadata_that_list_next_to_nothing_are_an_error(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    edit_info(folder, lambda info: info.update(total_episodes=10**15))
    with pytest.raises(SourceError, match=r"lists 7 episodes, meta/info.json counts 1,000,000,000,000,000"):
        find(folder)
    edit_info(folder, lambda info: info.update(total_episodes=7))
    edit_episodes(folder, lambda rows: rows.clear())
    with pytest.raises(SourceError, match=r"meta/episodes lists 0 episodes, meta/info.json counts 7; copy the whole"):
        find(folder)


BAD_VALUES: list[tuple[str, Any]] = [
    *(("length", value) for value in ("x7", None, float("inf"), -1, 7.5)),
    ("videos/observation.images.front/file_index", None),
    *(("videos/observation.images.front/from_timestamp", value) for value in ("x7", None, float("nan"))),
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_value_that_is_no_number_is_a_fault_of_its_episode_or_camera(key: str, value: Any, tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path)
    values = pa.array([value] * rows.num_rows, None if value is not None else pa.float64())
    pq.write_table(rows.set_column(rows.schema.get_field_index(key), key, values), path)
    first = find(folder).units["train"][0][0]
    result = first.fault if key == "length" else first.videos["observation.images.front"]
    expected = "number" if key.endswith("timestamp") else "whole number from 0"
    assert result == f"meta/episodes: {key} of episode 0 is {value!r}, expected a {expected}"
    assert key == "length" or first.video("observation.images.left_wrist") is not None


def test_a_length_in_json_that_no_float_holds_is_a_fault(tmp_path: Path) -> None:
    folder = copy_dataset("v21_av1", tmp_path)
    lengths = ("1e400", "1" + "0" * 400, '"x"', "null")
    lines = [f'{{"episode_index": {row}, "length": {length}}}' for row, length in enumerate(lengths)]
    (folder / "meta/episodes.jsonl").write_text("\n".join(lines))
    fault_texts = faults(folder)
    assert list(fault_texts) == [0, 1, 2, 3] and all("length of episode" in text for text in fault_texts.values())


def test_a_dataset_that_is_not_there_names_what_is(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"lerobot:demo/v3_avi: no meta/info.json in .*; .*'?v3_av1"):
        find_source("demo/v3_avi", [str(DATA)], {})
    with pytest.raises(UsageError, match=r"lerobot:v3_av1: expected ORG/NAME of the Hub, a path, or a folder below"):
        find_source("v3_av1", [], {})


@pytest.mark.parametrize(
    "pattern",
    ["/etc/{chunk_index}", "../{chunk_index}", "a/../../b", "{chunk}", "{chunk_index:99999d}", "{video_key}"],
)
def test_a_pattern_that_leaves_the_folder_is_refused(pattern: str) -> None:
    with pytest.raises(SourceError, match=r"not a file of the dataset|known are {chunk_index}"):
        file_name(pattern, context="d", chunk_index=0, video_key="../up")
