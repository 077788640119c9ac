"""``--layout frames``: every frame of every chosen camera once, camera after camera; holes, repair and all runners."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader
from tensorflow_datasets.proto import tf_example_pb2

from convert.errors import EXIT_DAMAGED, EXIT_USAGE
from convert.run.command import main
from stream import Frames, make_loader
from stream.format.frame import decode_frame, encode_raw
from stream.format.names import HOLE, decode_record
from stream.format.video import ChunkFrame, video_codec
from tests.fixtures.command import flip, run
from tests.fixtures.datasets.rlds_dataset import (
    RldsDataset,
    demo_episode,
    demo_features,
    jpeg,
    picture,
    serialise,
    write_dataset,
)

CAMERAS = {
    "wide": {"path": "observation/image", "role": "primary", "storage": "jpeg", "shape": [24, 32, 3]},
    "wrist": {"path": "hand", "role": "wrist", "storage": "jpeg", "shape": [16, 16, 3]},
}
STEPS = 7
FOLDER = Path("demo/1.0.0")
GOP = 3
"""Frames of a chunk, so that an episode ends with a shorter one."""
OPTIONS = {"jpeg": [], "raw": ["--codec", "raw"], "h264": ["--codec", "h264", "--gop", str(GOP), "--crf", "8"]}
chosen: list[str] = []
"""Options of the codec of this run of the tests."""


@pytest.fixture(
    scope="module",
    autouse=True,
    params=["jpeg", pytest.param("raw", marks=pytest.mark.long), pytest.param("h264", marks=pytest.mark.long)],
)
def codec(request: pytest.FixtureRequest) -> str:
    chosen[:] = OPTIONS[request.param]
    return str(request.param)


def features() -> dict[str, Any]:
    return demo_features(hand=tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"))


def episode(seed: int, steps: int = STEPS) -> dict[str, Any]:
    created = demo_episode(steps, seed=seed)
    rng = np.random.default_rng(1000 + seed)
    for step in created["steps"]:
        step["hand"] = jpeg(picture(rng, (16, 16)))
    return created


def without(record: bytes, feature: str) -> bytes:
    proto = tf_example_pb2.Example.FromString(record)
    del proto.features.feature[feature]
    return bytes(proto.SerializeToString())


@pytest.fixture(scope="module")
def episodes() -> list[dict[str, Any]]:
    """Episode 1 has a corrupt frame of each camera."""
    created = [episode(seed) for seed in range(6)]
    created[1]["steps"][3]["observation"]["image"] = b"\xff\xd8\xffdamaged"
    created[1]["steps"][0]["hand"] = b"\xff\xd8\xffdamaged"
    return created


@pytest.fixture(scope="module")
def dataset(episodes: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Three shards of two episodes. The last episode lacks the camera on the hand."""
    entries: list[Any] = [*episodes[:5], without(serialise(features(), episodes[5]), "steps/hand")]
    shards = [entries[:2], entries[2:4], entries[4:]]
    return write_dataset(tmp_path_factory.mktemp("source"), features=features(), splits={"train": shards})


def arguments(dataset: RldsDataset, output: Path, *more: str) -> list[str]:
    arguments = ["--datasets", "demo", "--source", str(dataset.root), "--output", str(output)]
    registry = ["--config", str(dataset.registry(cameras=CAMERAS))]
    return [*arguments, *registry, "--layout", "frames", "--cameras", "all", "--image-size", "native", *chosen, *more]


@pytest.fixture(scope="module")
def root(codec: str, dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("frames")
    assert main([*arguments(dataset, output), "--num-workers", "1"]) == EXIT_DAMAGED
    return output


def rows(root: Path) -> list[dict[str, Any]]:
    """The rows of ``records`` with the frame of each as it is stored, None for a hole."""
    folder = root / FOLDER / "train"
    table = pa.ipc.open_file(folder / "records.arrow").read_all().to_pylist()
    actual: list[dict[str, Any]] = []
    for shard, path in enumerate(sorted(folder.glob("*.arrayrecord"))):
        reader = ArrayRecordReader(str(path))
        mine = [row for row in table if row["shard"] == shard]
        positions = sorted({row["position"] for row in mine})
        # Rows of a chunk share its record.
        assert reader.num_records() == len(positions)
        for row in mine:
            (record,) = reader.read([positions.index(row["position"])])
            frame: Any = None
            if record == HOLE:
                pass
            elif video_codec(record):
                frame = ChunkFrame(record, row["step"] % GOP, ((24, 32), (16, 16)))
            else:
                (frame,) = decode_record(record)
            actual.append(row | {"frame": frame})
        reader.close()
    return actual


def is_like(frame: Any, jpeg: bytes) -> bool:
    """Return whether a stored frame is a JPEG of the source: its bytes, its pixels, or nearly."""
    if not chosen:
        return bool(frame == jpeg)
    pixels, expected = decode_frame(frame).astype(float), decode_frame(jpeg)
    return bool(np.square(pixels - expected).mean() < (0.1 if chosen[1] == "raw" else 255**2 / 10**2.5))


def test_every_frame_of_every_camera_is_stored_once_camera_after_camera(
    root: Path, episodes: list[dict[str, Any]]
) -> None:
    actual = rows(root)
    expected = [(e, c, s) for e in range(6) for c in range(2) for s in range(STEPS)]
    assert [(row["episode"], row["camera"], row["step"]) for row in actual] == expected
    for row in actual:
        step = episodes[row["episode"]]["steps"][row["step"]]
        stored = step["hand"] if row["camera"] else step["observation"]["image"]
        missing = row["episode"] == 5 and row["camera"] == 1
        if missing or stored.endswith(b"damaged"):
            assert row["frame"] is None
        else:
            assert is_like(row["frame"], stored)
    # So a window of one camera is one stretch of its file.
    for before, after in itertools.pairwise(actual):
        if before["shard"] == after["shard"] and "h264" not in chosen:
            assert before["position"] < after["position"]


def test_holes_are_counted_and_listed_with_camera_and_step(root: Path) -> None:
    manifest = json.loads((root / FOLDER / "dataset.json").read_text())
    assert manifest["left_out"] == {"corrupt_frame": 2, "missing_camera": 1}
    assert manifest["episodes"] == 6
    assert manifest["records"] == 6 * 2 * STEPS
    assert manifest["image"]["cameras"] == {"wide": {"24x32": 41}, "wrist": {"16x16": 34}}
    listed = [json.loads(line) for line in (root / FOLDER / "quarantine.jsonl").read_text().splitlines()]
    assert [(item["reason"], item["episode"], item["step"], item["detail"].partition(":")[0]) for item in listed] == [
        ("corrupt_frame", 1, 0, "wrist"),
        ("corrupt_frame", 1, 3, "wide"),
        ("missing_camera", 1, None, "no hand"),
    ]


def test_every_camera_alike_may_lack_its_frames_and_an_episode_without_any_is_quarantined(tmp_path: Path) -> None:
    blind = episode(2)
    for step in blind["steps"]:
        step["observation"]["image"] = step["hand"] = b"\xff\xd8\xffdamaged"
    records = [serialise(features(), item) for item in (episode(0), episode(1), blind, episode(3))]
    records[0] = without(records[0], "steps/observation/image")
    records[1] = without(without(records[1], "steps/observation/image"), "steps/hand")
    dataset = write_dataset(tmp_path / "source", features=features(), splits={"train": [records]})
    assert main([*arguments(dataset, tmp_path / "out"), "--num-workers", "1"]) == EXIT_DAMAGED
    table = pa.ipc.open_file(tmp_path / "out" / FOLDER / "train" / "episodes.arrow").read_all()
    assert table["status"].to_pylist() == ["ok", "malformed", "missing_frames", "ok"]
    assert table["num_steps"].to_pylist() == [STEPS, 0, 0, STEPS]
    seen = [(row["episode"], row["camera"], row["frame"] is not None) for row in rows(tmp_path / "out")]
    expected = [(0, 0, False), (0, 1, True), (3, 0, True), (3, 1, True)]
    assert seen == [item for item in expected for _ in range(STEPS)]
    manifest = json.loads((tmp_path / "out" / FOLDER / "dataset.json").read_text())
    once = dict.fromkeys(("malformed", "missing_camera", "missing_frames"), 1)
    assert manifest["left_out"] == {"corrupt_frame": 2 * STEPS, **once}
    assert verify(tmp_path / "out", "--deep").code == 0
    assert make_loader(tmp_path / "out", "demo", batch_size=2, frames=Frames((0,), cameras="wrist")).sizes == {
        "demo": 2 * STEPS
    }
    assert make_loader(tmp_path / "out", "demo", batch_size=2, frames=(0,)).sizes == {"demo": STEPS}


@pytest.mark.parametrize("cameras", ["primary", ("primary", "wrist")], ids=str)
@pytest.mark.parametrize("frames", [(0,), (-1, 2), (0, "1..2")], ids=str)
def test_windows_avoid_holes_and_random_frames_mask_them(
    root: Path, episodes: list[dict[str, Any]], cameras: Any, frames: Any
) -> None:
    loader = make_loader(root, "demo", batch_size=8, frames=Frames(frames, cameras=cameras))
    num_missing = {(1, "primary", 3), (1, "wrist", 0)} | {(5, "wrist", step) for step in range(STEPS)}
    listed = [cameras] if isinstance(cameras, str) else cameras
    fixed = [frame for frame in frames if isinstance(frame, int)]
    last = max(2 if isinstance(frame, str) else frame for frame in frames)
    expected = {
        (e, t)
        for e in range(6)
        for t in range(max(0, -min(fixed)), STEPS - max(last, 0))
        if not any((e, camera, t + frame) in num_missing for camera in listed for frame in fixed)
    }
    assert loader.sizes == {"demo": len(expected)}
    actual = set()
    for step in range(-(-len(expected) // 8)):
        batch = loader.batch_at(step)
        actual |= set(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True))
        for camera in listed:
            suffix = "" if isinstance(cameras, str) else f"/{camera}"
            masks, pictures = batch[f"frames_mask{suffix}"], batch[f"frames{suffix}"]
            for row, e in enumerate(batch["episode"].tolist()):
                for path, claimed in enumerate(batch["frame_step"][row].tolist()):
                    assert masks[row, path] == ((e, camera, claimed) not in num_missing)
                    assert masks[row, path] == pictures[row, path].any()
                    if chosen and masks[row, path]:
                        source = episodes[e]["steps"][claimed]
                        stored = source["hand"] if camera == "wrist" else source["observation"]["image"]
                        assert is_like(encode_raw(pictures[row, path]), stored)
    assert actual == expected
    assert loader.describe()["demo"]["left_out"].get("holes", 0) > 0


def test_a_hole_in_the_last_frame_leaves_out_every_sample_that_takes_it(root: Path) -> None:
    loader = make_loader(root, "demo", batch_size=1, frames=Frames([0, "last"], cameras="wrist"))
    without_last = {5}
    size = loader.sizes["demo"]
    for batch in map(loader.batch_at, range(size)):
        assert batch["frames_mask"].all()
        assert int(batch["episode"][0]) not in without_last
    assert loader.describe()["demo"]["left_out"]["holes"] > 0


def test_repeated_edges_mask_what_is_no_frame_of_the_sample(root: Path) -> None:
    loader = make_loader(root, "demo", batch_size=4, frames=Frames(edges="repeat"))
    seen = set()
    for batch in map(loader.batch_at, range(loader.sizes["demo"] // 4)):
        for row, (e, t) in enumerate(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True)):
            for path, expected in enumerate((t, t + 2)):
                shown = min(expected, STEPS - 1)
                is_hole = (e, shown) == (1, 3)
                assert batch["frame_step"][row, path] == shown
                assert batch["frames_mask"][row, path] == (expected == shown and not is_hole)
                # An edge of the episode is repeated; a hole is black.
                assert batch["frames"][row, path].any() != is_hole
                seen.add((expected == shown, is_hole))
    assert seen == {(True, False), (True, True), (False, False)}


def test_sizes_and_cameras_are_chosen_by_role(dataset: RldsDataset, tmp_path: Path) -> None:
    options = arguments(dataset, tmp_path, "--image-size", "primary:24x32,wrist:8x12", "--num-workers", "1")
    assert main(options) == EXIT_DAMAGED
    manifest = json.loads((tmp_path / FOLDER / "dataset.json").read_text())
    assert manifest["image"]["cameras"] == {"wide": {"24x32": 41}, "wrist": {"8x12": 34}}
    assert manifest["image"]["passed"] == (0 if "--codec" in options else 41)
    loader = make_loader(tmp_path, "demo", batch_size=4, frames=Frames((0, 1), cameras=("wrist", "primary")))
    batch = loader.batch_at(0)
    assert batch["frames/wrist"].shape == (4, 2, 8, 12, 3)
    assert batch["frames/primary"].shape == (4, 2, 24, 32, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cameras", "ceiling"), "--cameras: no dataset has 'ceiling'; "),
        (("--image-size", "wirst:8x8"), "no dataset has 'wirst'; did you mean 'wrist'?"),
        (("--frames", "all"), "--frames works with --layout pairs"),
        (("--layout", "pairs"), "--cameras all: a pair is of one camera; name one, or add --layout frames"),
        (("--cameras", ","), "--cameras ',' names no camera"),
    ],
)
def test_wrong_options_are_one_clear_error(
    dataset: RldsDataset, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = run(*arguments(dataset, tmp_path / "out", *options), module="convert.run")
    assert done.code == EXIT_USAGE
    assert message in done.error()
    assert not (tmp_path / "out").exists()


def verify(root: Path, *more: str) -> Any:
    return run(str(root), *more, module="pairstream verify")


@pytest.mark.long
def test_verify_and_doctor_find_nothing_wrong(root: Path) -> None:
    done = verify(root, "--deep")
    assert done.code == 0, done.out
    assert run(str(root), module="pairstream doctor").code == 0


def test_verify_finds_a_flipped_bit_in_a_frame(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    flip(copy / FOLDER / "train" / "train-00001-of-00003.arrayrecord", 2000)
    done = verify(copy, "--deep")
    assert done.code == 1
    assert "train-00001-of-00003" in done.out


def test_an_episode_is_shown_with_its_frames(root: Path, episodes: list[dict[str, Any]]) -> None:
    shown = make_loader(root, "demo", batch_size=2, frames=Frames((0,), cameras="primary")).episode("demo", 1)
    assert shown.frame_steps.tolist() == [0, 1, 2, 4, 5, 6]
    assert shown.frames.shape == (6, 24, 32, 3)
    assert shown.table.num_rows == STEPS


@pytest.mark.long
def test_a_dry_run_counts_the_frames_of_all_cameras(dataset: RldsDataset, tmp_path: Path) -> None:
    done = run(*arguments(dataset, tmp_path / "out", "--dry-run", "--json"), module="convert.run")
    (plan,) = json.loads(done.out)
    assert plan["estimated_frames"] == pytest.approx(6 * 2 * STEPS, rel=0.2)
    assert not (tmp_path / "out").exists()
