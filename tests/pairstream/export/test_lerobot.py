"""An exported slice has the files, columns and values that LeRobot's format v3.0 declares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg

from pairstream.export.command import export
from stream import Frames, make_loader
from stream.loader.episode import read_stored_episode
from tests.fixtures.datasets.lerobot_dataset import decode
from tests.pairstream.export.conftest import LENGTHS

PRIMARY, WRIST = "observation.images.primary", "observation.images.wrist"
FIRST = "chunk-000/file-000"
STEPS = sum(LENGTHS)


@pytest.fixture(scope="module")
def exports(holed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {kind: tmp_path_factory.mktemp("exported") / kind for kind in ("images", "video")}
    for kind, folder in folders.items():
        export(holed, folder, dataset="demo", video=kind == "video")
    return folders


@pytest.fixture
def images(exports: dict[str, Path]) -> Path:
    return exports["images"]


@pytest.fixture
def video(exports: dict[str, Path]) -> Path:
    return exports["video"]


def table(folder: Path) -> pa.Table:
    return pq.read_table(folder / f"data/{FIRST}.parquet")


def episodes(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"meta/episodes/{FIRST}.parquet").to_pylist()
    return rows


def meta(folder: Path, name: str = "info") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"meta/{name}.json").read_text())
    return content


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_files_are_those_of_the_format(images: Path, video: Path) -> None:
    meta = {"meta/info.json", "meta/stats.json", "meta/tasks.parquet", f"meta/episodes/{FIRST}.parquet"}
    expected = {*meta, f"data/{FIRST}.parquet", "meta/source.json"}
    assert files(images) == expected
    assert files(video) == expected | {f"videos/{camera}/{FIRST}.mp4" for camera in (PRIMARY, WRIST)}


def test_info_declares_totals_paths_rate_and_features(images: Path, video: Path) -> None:
    content = meta(images)
    features = content.pop("features")
    assert content == {
        "codebase_version": "v3.0",
        "robot_type": "panda",
        "total_episodes": 3,
        "total_frames": STEPS,
        "total_tasks": 4,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": 5,
        "splits": {"train": "0:3"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
    }
    assert features[PRIMARY] == {"dtype": "image", "shape": [24, 32, 3], "names": ["height", "width", "channels"]}
    assert features["action"] == {"dtype": "float32", "shape": [2], "names": ["action[0]", "action[1]"]}
    assert features["timestamp"] == {"dtype": "float32", "shape": [1], "names": None}
    assert features["observation.frames_mask"] == {"dtype": "bool", "shape": [2], "names": ["primary", "wrist"]}
    assert meta(video)["features"].keys() == features.keys()
    assert meta(video)["video_path"] == "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    declared = meta(video)["features"][WRIST]
    assert (declared["dtype"], declared["shape"], declared["info"]["video.fps"]) == ("video", [16, 16, 3], 5)


def test_columns_have_the_types_of_the_features(images: Path, video: Path) -> None:
    numbers = {
        "observation.state": pa.list_(pa.float32(), 3),
        "action": pa.list_(pa.float32(), 2),
        "observation.frames_mask": pa.list_(pa.bool_(), 2),
        "next.done": pa.bool_(),
        "timestamp": pa.float32(),
        **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), pa.int64()),
    }
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert dict(zip(table(video).schema.names, table(video).schema.types, strict=True)) == numbers
    schema = table(images).schema
    assert dict(zip(schema.names, schema.types, strict=True)) == {**numbers, PRIMARY: picture, WRIST: picture}
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert features.keys() == {*numbers, PRIMARY, WRIST}
    assert features[PRIMARY] == {"_type": "Image"}


def test_numbers_are_those_of_the_root(holed: Path, images: Path) -> None:
    loader = make_loader(holed, "demo", batch_size=1)
    stored = [loader.episode("demo", number).table for number in range(3)]
    exported = table(images)
    for column, feature in (("action", "action"), ("state", "observation.state")):
        expected = np.concatenate([np.stack(episode[column].to_numpy()) for episode in stored])
        np.testing.assert_array_equal(np.stack(exported[feature].to_numpy()), expected)
    steps = np.concatenate([np.arange(length) for length in LENGTHS])
    np.testing.assert_array_equal(exported["frame_index"], steps)
    np.testing.assert_array_equal(exported["timestamp"], (steps / 5).astype(np.float32))
    np.testing.assert_array_equal(exported["episode_index"], np.repeat(range(3), LENGTHS))
    np.testing.assert_array_equal(exported["index"], np.arange(STEPS))
    assert np.flatnonzero(exported["next.done"]).tolist() == (np.cumsum(LENGTHS) - 1).tolist()


def test_each_step_has_the_task_of_its_instruction(holed: Path, images: Path) -> None:
    tasks = pq.read_table(images / "meta/tasks.parquet")
    assert tasks["task_index"].to_pylist() == [0, 1, 2, 3]
    texts = tasks["task"].to_pylist()
    loader = make_loader(holed, "demo", batch_size=1)
    tables = [loader.episode("demo", episode).table for episode in range(3)]
    instructions = [text for steps in tables for text in steps["language"].to_pylist()]
    assert [texts[number] for number in table(images)["task_index"].to_pylist()] == instructions
    assert [row["tasks"] for row in episodes(images)] == [["task 0", "then the drawer"], ["task 1"], ["task 2"]]
    about = json.loads(tasks.schema.metadata[b"pandas"])
    assert about["index_columns"] == ["task"]


def test_episodes_say_where_their_rows_and_frames_are(images: Path, video: Path) -> None:
    ends = np.cumsum(LENGTHS).tolist()
    for folder in (images, video):
        rows = episodes(folder)
        assert [row["length"] for row in rows] == list(LENGTHS)
        assert [row["dataset_to_index"] for row in rows] == ends
        assert [row["dataset_from_index"] for row in rows] == [0, *ends[:-1]]
        assert {row[f"data/{name}_index"] for row in rows for name in ("chunk", "file")} == {0}
    assert not any(name.startswith("videos/") for name in episodes(images)[0])
    for row, end, length in zip(episodes(video), ends, LENGTHS, strict=True):
        for camera in (PRIMARY, WRIST):
            assert row[f"videos/{camera}/from_timestamp"] == pytest.approx((end - length) / 5)
            assert row[f"videos/{camera}/to_timestamp"] == pytest.approx(end / 5)


def test_images_are_the_stored_bytes_and_holes_are_black_and_masked(holed: Path, images: Path) -> None:
    data = make_loader(holed, "demo", batch_size=1, frames=Frames([0], cameras=["base", "left"])).data
    stored = [read_stored_episode(data, "demo", number) for number in range(3)]
    mask = np.stack(table(images)["observation.frames_mask"].to_numpy())
    for number, camera in enumerate((PRIMARY, WRIST)):
        jpegs = [jpeg for episode in stored for jpeg in episode.frames[number]]
        cells = table(images)[camera].to_pylist()
        assert [jpeg is not None for jpeg in jpegs] == mask[:, number].tolist()
        for jpeg, cell in zip(jpegs, cells, strict=True):
            assert cell["bytes"] == jpeg if jpeg else simplejpeg.decode_jpeg(cell["bytes"]).max() == 0
    assert (~mask[:, 0]).nonzero()[0].tolist() == [LENGTHS[0] + 3]
    assert (~mask[:, 1]).nonzero()[0].tolist() == list(range(LENGTHS[0] + LENGTHS[1], STEPS))


def test_videos_are_the_same_frames_at_their_times(images: Path, video: Path) -> None:
    for camera in (PRIMARY, WRIST):
        path = video / f"videos/{camera}/{FIRST}.mp4"
        frames = decode(path)
        assert len(frames) == STEPS
        expected = np.stack([simplejpeg.decode_jpeg(cell["bytes"]) for cell in table(images)[camera].to_pylist()])
        # Each frame is nearer to its own picture than to any other: random colours, of which 4:2:0 keeps a quarter.
        errors = np.array([((expected.astype(float) - pixels) ** 2).mean(axis=(1, 2, 3)) for pixels in frames])
        assert (10 * np.log10(255**2 / np.maximum(np.diag(errors), 1e-9))).min() > 24
        assert (np.diag(errors) <= errors.min(axis=1)).all()
        with av.open(str(path)) as container:
            times = [frame.time for frame in container.decode(video=0)]
            assert container.streams.video[0].codec_context.name == "h264"
        np.testing.assert_allclose(times, np.arange(STEPS) / 5, atol=1e-4)


def test_statistics_are_those_of_all_steps_and_of_each_episode(images: Path) -> None:
    stats = meta(images, "stats")
    action = np.stack(table(images)["action"].to_numpy()).astype(np.float64)
    first = action[: LENGTHS[0]]
    row = episodes(images)[0]
    of_first = {name: row[f"stats/action/{name}"] for name in stats["action"]}
    for statistics, values in ((stats["action"], action), (of_first, first)):
        for name in ("min", "max", "mean", "std"):
            np.testing.assert_allclose(statistics[name], getattr(values, name)(axis=0))
        for name, share in (("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)):
            np.testing.assert_allclose(statistics[name], np.quantile(values, share, axis=0))
        assert statistics["count"] == [len(values)]
    assert stats.keys() == meta(images)["features"].keys()


def test_statistics_of_pictures_leave_out_holes_and_are_from_0_to_1(images: Path) -> None:
    stats = meta(images, "stats")
    cells, mask = table(images)[PRIMARY].to_pylist(), np.stack(table(images)["observation.frames_mask"].to_numpy())
    pixels = np.stack([simplejpeg.decode_jpeg(cell["bytes"]) for cell in cells])[mask[:, 0]] / 255
    statistics = stats[PRIMARY]
    assert statistics["count"] == [STEPS - 1]
    for name in ("min", "max", "mean", "std"):
        assert np.shape(statistics[name]) == (3, 1, 1)
        np.testing.assert_allclose(np.ravel(statistics[name]), getattr(pixels, name)(axis=(0, 1, 2)), atol=1e-9)
    median = np.median(pixels.reshape(-1, 3), axis=0)
    np.testing.assert_allclose(np.ravel(statistics["q50"]), median, atol=1.5 / 255)


def test_the_origin_of_each_episode_is_kept(images: Path) -> None:
    origin = meta(images, "source")
    assert (origin["dataset"], origin["version"]) == ("demo", "1.0.0")
    origins = [(row["episode_index"], row["split"], row["episode"]) for row in origin["episodes"]]
    assert origins == [(number, "train", number) for number in range(3)]
    assert origin["episodes"][2]["episode_id"].endswith("__2")
