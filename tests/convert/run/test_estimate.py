import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tensorflow_datasets as tfds

from convert.plan import ConvertConfig
from convert.run.command import main
from convert.run.estimate import Estimate, estimate
from convert.shard.images import FramePolicy
from convert.source.rlds.record_files import encode_tfrecord
from stream.format.manifest import Manifest
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, demo_features, serialise, write_dataset


def test_the_estimate_for_episodes_alike_is_what_comes_out(tmp_path: Path) -> None:
    shards = [[demo_episode(8, seed=seed) for seed in range(start, start + 12)] for start in (0, 12)]
    conversion = write_dataset(tmp_path, splits={"train": shards}).conversion(tmp_path / "out")
    actual = estimate(conversion)
    manifest = convert_dataset(conversion)
    assert manifest.records == 24 * 6
    assert actual.records == pytest.approx(manifest.records, rel=0.1)
    assert actual.bytes == pytest.approx(written(manifest), rel=0.35)


def written(manifest: Manifest) -> int:
    split = manifest.splits["train"]
    return sum(entry.bytes for entry in (*(shard.file for shard in split.shards), *split.index.values()))


def test_the_index_counts_with_every_column(tmp_path: Path) -> None:
    features = demo_features(depth=tfds.features.Tensor(shape=(40, 50), dtype=np.float32))
    episodes = [demo_episode(8, seed=seed, depth=np.ones((40, 50), np.float32)) for seed in range(9)]
    dataset = write_dataset(tmp_path, features=features, splits={"train": [episodes]})
    state = [{"path": "depth", "dims": 2000}]
    options = ConvertConfig(policy=FramePolicy(size=(8, 8)))
    conversion = dataset.conversion(tmp_path / "out", options, state=state, spaces=None)
    actual = estimate(conversion)
    manifest = convert_dataset(conversion)
    assert written(manifest) > 9 * 8 * 2 * 8000, "the feature and the state"
    assert actual.bytes == pytest.approx(written(manifest), rel=0.1)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (FramePolicy(size=(16, 16)), "16x16, stretched from 24x32"),
        (FramePolicy(size=(16, 16), resize="crop"), "16x16, cropped from 24x32"),
        (FramePolicy(size=(16, 16), resize="pad"), "16x16, padded from 24x32"),
        (FramePolicy(size=(12, 16)), "12x16"),
        (FramePolicy(size=None), "24x32"),
    ],
)
def test_the_size_of_frames_is_told_and_what_it_does_to_them(
    tmp_path: Path, policy: FramePolicy, expected: str
) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[demo_episode(8)]]})
    actual = estimate(dataset.conversion(tmp_path / "out", ConvertConfig(policy=policy)))
    assert actual.sizes == {"observation/image": expected}


def test_the_beginning_of_a_damaged_file_is_enough(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[demo_episode(8), demo_episode(8, seed=1)]]})
    path = dataset.shard()
    path.write_bytes(path.read_bytes()[:-5])
    actual = estimate(dataset.conversion(tmp_path / "out"))
    assert actual.records == pytest.approx(12, abs=1)


def test_records_that_are_no_episodes_are_passed_over(tmp_path: Path) -> None:
    bad_frame = demo_episode(8)
    bad_frame["steps"][0]["observation"]["image"] = b"damaged"
    good = serialise(demo_features(), demo_episode(8, seed=1))
    dataset = write_dataset(tmp_path, splits={"train": [[b"\xff\xff", bad_frame, good]]})
    actual = estimate(dataset.conversion(tmp_path / "out"))
    size = dataset.shard().stat().st_size
    assert actual.records == round(6 / len(good) * size)


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_frames_that_are_damaged_take_no_room(tmp_path: Path, codec: Literal["raw", "jpeg"]) -> None:
    episodes = [demo_episode(8, seed=seed, size=(120, 160)) for seed in range(12)]
    for step in (step for episode in episodes for step in episode["steps"][1::2]):
        step["observation"]["image"] = b"damaged"
    dataset = write_dataset(tmp_path, splits={"train": [episodes]})
    options = ConvertConfig(layout="frames", policy=FramePolicy(size=(480, 640), codec=codec))
    conversion = dataset.conversion(tmp_path / "out", options)
    actual = estimate(conversion)
    manifest = convert_dataset(conversion)
    assert manifest.left_out == {"corrupt_frame": 12 * 4}
    assert actual.records == manifest.records == 12 * 8
    assert actual.bytes == pytest.approx(written(manifest), rel=0.1)


@pytest.mark.parametrize("record", [b"\xff\xff", serialise(demo_features(), demo_episode(0))], ids=["damaged", "empty"])
def test_without_any_readable_episode_nothing_is_claimed_to_come_out(tmp_path: Path, record: bytes) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[record]]})
    assert not estimate(dataset.conversion(tmp_path / "out")).records


def test_a_file_that_does_not_begin_with_a_record_gives_no_estimate(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[demo_episode(8)]]})
    dataset.shard().write_bytes(bytes(len(encode_tfrecord(b"")) + 30))
    assert estimate(dataset.conversion(tmp_path / "out")) == Estimate()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted dataset whose episodes differ in length and in the sizes of their frames."""
    folder = tmp_path_factory.mktemp("root")
    shards = [
        [
            demo_episode(8 + 9 * seed % 40, seed=seed, size=(24 + 16 * seed % 90, 96))
            for seed in range(start, start + 10)
        ]
        for start in (0, 10, 20)
    ]
    dataset = write_dataset(folder / "source", splits={"train": shards})
    options = ("--layout", "frames", "--image-size", "96x128", "--config", str(dataset.registry()))
    command = ["--datasets", "demo", "--source", str(dataset.root), "--output", str(folder / "out")]
    assert main([*command, "--num-workers", "1", *options]) == 0
    return folder / "out"


def dry_run(root: Path, output: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    command = ["--datasets", f"root:{root / 'demo'}", "--output", str(output), "--json", *options]
    assert main([*command, "--dry-run"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    actual: dict[str, Any] = row
    return actual


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        ["--codec", "raw"],
        ["--image-size", "48x64"],
        ["--layout", "pairs", "--codec", "raw", "--image-size", "48x64"],
        ["--codec", "h264", "--image-size", "192x256"],
    ],
    ids=" ".join,
)
def test_the_estimate_for_a_converted_root_is_within_five_percent(
    root: Path, tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = dry_run(root, tmp_path / "out", *options, capsys=capsys)
    command = ["--datasets", f"root:{root / 'demo'}", "--output", str(tmp_path / "out"), "--num-workers", "1"]
    assert main([*command, *options]) == 0
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.arr*"))
    assert message["estimated_bytes"] == pytest.approx(size, rel=0.05)


def test_the_estimate_for_a_converted_root_counts_the_listed_episodes_alone(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full_estimate = dry_run(root, tmp_path / "out", "--codec", "raw", capsys=capsys)
    chosen = tmp_path / "chosen.json"
    chosen.write_text('{"demo": {"leave_out": ["*-00001-of-00003__*", "*-00002-of-00003__*"]}}')
    part = dry_run(root, tmp_path / "out", "--codec", "raw", "--episodes", str(chosen), capsys=capsys)
    steps = sum(8 + 9 * seed % 40 for seed in range(10))
    assert part["estimated_frames"] == steps
    assert part["estimated_bytes"] == pytest.approx(
        steps * full_estimate["estimated_bytes"] / full_estimate["estimated_frames"], 0.05
    )


def test_a_dry_run_tells_whether_the_result_fits(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    total = dry_run(root, tmp_path / "out", capsys=capsys)["total"]
    assert total["free_disk"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert (total["fits_memory"], total["fits_disk"]) == (True, True)
    monkeypatch.setattr("convert.run.report.available_memory", lambda: total["estimated_bytes"] - 1)
    assert dry_run(root, tmp_path / "out", capsys=capsys)["total"]["fits_memory"] is False
    assert main(["--datasets", f"root:{root / 'demo'}", "--output", str(tmp_path / "out"), "--dry-run"]) == 0
    assert "DOES NOT FIT into the " in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
