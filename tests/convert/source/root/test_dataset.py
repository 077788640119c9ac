"""A converted dataset is converted again without its source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from convert.doctor.command import main as doctor
from convert.errors import EXIT_DAMAGED, EXIT_USAGE, SourceError, UsageError
from convert.run.command import main
from convert.source.root.dataset import find
from convert.verify.command import main as verify
from pairstream.view.tracks import open_tracks
from stream import make_loader
from stream.base.errors import FormatError, RecordError
from stream.format.catalog import Catalog
from stream.format.index import open_index
from tests.fixtures.command import flip, write_damaged_dataset
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, demo_features, png, write_dataset

LAYOUTS = ("pairs", "frames")
FOLDER = Path("demo/1.0.0")


def convert(datasets: str, output: Path, *more: str) -> int:
    return main(["--datasets", datasets, "--output", str(output), "--num-workers", "1", *more])


def content(root: Path) -> dict[str, bytes]:
    """The tables and records of a root, by name."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.suffix in (".arrow", ".arrayrecord")
    }


def from_source(dataset: RldsDataset, output: Path, *more: str, **fields: Any) -> int:
    registry = ("--config", str(dataset.registry(**fields)))
    return convert("demo", output, "--source", str(dataset.root), *registry, "--offset", "2", *more)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with damage of every kind, converted in both layouts."""
    folder = tmp_path_factory.mktemp("roots")
    dataset = write_damaged_dataset(folder / "source")
    for layout in LAYOUTS:
        assert from_source(dataset, folder / layout, "--layout", layout) == EXIT_DAMAGED
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_root_gives_the_same_tables_and_records_again(roots: Path, tmp_path: Path, layout: str) -> None:
    assert convert(f"root:{roots / layout / 'demo'}", tmp_path) == EXIT_DAMAGED
    assert content(tmp_path) == content(roots / layout)
    assert verify([str(tmp_path), "--deep"]) == 0


@pytest.mark.long
def test_a_path_is_known_as_a_root_and_its_version_may_be_named(roots: Path, tmp_path: Path) -> None:
    assert convert(str(roots / "pairs" / FOLDER), tmp_path) == EXIT_DAMAGED
    assert content(tmp_path) == content(roots / "pairs")


@pytest.mark.long
def test_raw_frames_have_the_pixels_of_the_jpegs_and_jpegs_come_of_them_again(roots: Path, tmp_path: Path) -> None:
    assert convert(f"root:{roots / 'frames' / 'demo'}", tmp_path / "raw", "--codec", "raw") == EXIT_DAMAGED
    assert convert(f"root:{tmp_path / 'raw' / 'demo'}", tmp_path / "jpeg") == EXIT_DAMAGED
    batches = [
        make_loader(root, "demo", split="train", batch_size=16, num_workers=0).batch_at(1)
        for root in (roots / "frames", tmp_path / "raw", tmp_path / "jpeg")
    ]
    np.testing.assert_array_equal(batches[0]["frames"], batches[1]["frames"])
    assert np.abs(batches[1]["frames"].astype(int) - batches[2]["frames"]).mean() < 3
    for name in ("action", "state", "episode", "step"):
        np.testing.assert_array_equal(batches[0][name], batches[2][name])


@pytest.mark.long
def test_chunks_of_video_pass_through_and_are_decoded_for_other_codecs(roots: Path, tmp_path: Path) -> None:
    video = ("--codec", "h264", "--gop", "3")
    assert convert(f"root:{roots / 'frames' / 'demo'}", tmp_path / "h264", *video) == EXIT_DAMAGED
    # The codec and the length of chunks stay as they are where nobody says another.
    assert convert(f"root:{tmp_path / 'h264' / 'demo'}", tmp_path / "again") == EXIT_DAMAGED
    assert content(tmp_path / "again") == content(tmp_path / "h264")
    assert verify([str(tmp_path / "again"), "--deep"]) == 0
    for name, options in {"raw": ("--codec", "raw"), "longer": ("--gop", "4")}.items():
        assert convert(f"root:{tmp_path / 'h264' / 'demo'}", tmp_path / name, *options) == EXIT_DAMAGED
    result = [
        make_loader(root, "demo", split="train", batch_size=16, num_workers=0).batch_at(1)["frames"]
        for root in (tmp_path / "h264", tmp_path / "raw", tmp_path / "longer")
    ]
    np.testing.assert_array_equal(result[0], result[1])
    assert 0 < np.abs(result[0].astype(int) - result[2]).mean() < 5


@pytest.mark.long
def test_chosen_episodes_another_size_and_other_splits(roots: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.json"
    chosen.write_text('{"demo": ["demo-train.tfrecord-00000-of-00006__*"]}')
    options = ("--episodes", f"train:{chosen}", "--image-size", "16x20")
    assert convert(f"root:{roots / 'frames' / 'demo'}", tmp_path / "out", *options) in (0, EXIT_DAMAGED)
    loader = make_loader(tmp_path / "out", "demo", split="train", batch_size=4, num_workers=0)
    assert loader.batch_at(0)["frames"].shape[2:] == (16, 20, 3)
    ids = {row.episode_id for step in range(4) for row in loader.describe(step)}
    assert all(item.startswith("demo-train.tfrecord-00000-of-00006__") for item in ids)


@pytest.mark.long
def test_frames_become_pairs(roots: Path, tmp_path: Path) -> None:
    assert convert(f"root:{roots / 'frames' / 'demo'}", tmp_path, "--layout", "pairs") == EXIT_DAMAGED
    result, expected = content(tmp_path), content(roots / "pairs")
    for name in expected:
        if name.endswith("steps.arrow"):
            assert result[name] == expected[name]
    (first, *_) = (name for name in expected if name.endswith("00000-of-00006.arrayrecord"))
    assert result[first] == expected[first]


@pytest.mark.long
def test_colours_and_depth_are_not_turned_twice(tmp_path: Path) -> None:
    depth = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32)
    episodes = [demo_episode(4, seed=seed, far=png(depth + seed)) for seed in range(2)]
    features = demo_features(far=tfds.features.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"))
    dataset = write_dataset(tmp_path / "source", features=features, splits={"train": [episodes]})
    cameras = {
        "eye": {"path": "observation/image", "role": "primary", "channels": "bgr"},
        "far": {"path": "far", "role": "other", "kind": "depth", "scale": 2.0},
    }
    options = ("--layout", "frames", "--cameras", "eye,far", "--image-size", "native")
    assert from_source(dataset, tmp_path / "first", *options, cameras=cameras) == 0
    assert convert(f"root:{tmp_path / 'first' / 'demo'}", tmp_path / "again") == 0
    assert content(tmp_path / "again") == content(tmp_path / "first")


@pytest.mark.long
def test_a_damaged_chunk_of_video_has_one_number_wherever_it_is_named(
    roots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = ("--codec", "h264", "--gop", "3")
    assert convert(f"root:{roots / 'frames' / 'demo'}", tmp_path / "h264", *video) == EXIT_DAMAGED
    dataset = Catalog(tmp_path / "h264").open("demo")
    index = open_index(dataset, "train")
    (row, *_) = np.flatnonzero(index.records.array("step") == 3)
    shard, position = (int(index.records.array(name)[row]) for name in ("shard", "position"))
    number = index.record_number(int(row))
    assert number != row - index.shards.first_records[shard]
    flip(Path(index.record_path(shard)), position + 20)
    named = f"record {number} "
    loader = make_loader(tmp_path / "h264", "demo", split="train", batch_size=8, num_workers=0)
    with pytest.raises(RecordError, match=f"record {number},"):
        for step in range(100):
            loader.batch_at(step)
    track = open_tracks(dataset, index, int(index.records.array("episode")[row])).camera(0)
    with pytest.raises(FormatError, match=f"shard {index.shards.stem(shard)}, {named}"):
        track.read(3)
    capsys.readouterr()
    assert doctor([str(tmp_path / "h264"), "--json"]) == 1
    examples = [item for result in json.loads(capsys.readouterr().out)["findings"] for item in result["examples"]]
    assert number in [item.get("record") for item in examples]
    assert convert(f"root:{tmp_path / 'h264' / 'demo'}", tmp_path / "out", "--codec", "raw") == EXIT_DAMAGED
    assert f"{named}cannot be read" in (tmp_path / "out" / FOLDER / "quarantine.jsonl").read_text()


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)], ids=["", "overwrite"])
def test_a_root_is_not_converted_over_itself(
    roots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], overwrite: tuple[str, ...]
) -> None:
    shutil.copytree(roots / "frames", tmp_path / "copy")
    (tmp_path / "link").symlink_to(tmp_path / "copy")
    before = content(tmp_path / "copy")
    for output in ("copy", "link"):
        context = f"root:{tmp_path / 'copy' / 'demo'}"
        assert convert(context, tmp_path / output, "--codec", "raw", *overwrite) == EXIT_USAGE
        assert "would be written over; give another --output" in capsys.readouterr().err
    assert content(tmp_path / "copy") == before


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("nothing", "nothing: no such folder; give that of a converted dataset, ROOT/<dataset>"),
        ("source/demo", "no dataset.json|TFDS"),
        ("s3://bucket/converted/demo", "a bucket is not a source; download it with `pairstream fetch`"),
    ],
)
def test_what_is_no_converted_dataset_is_refused(
    roots: Path, tmp_path: Path, location: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    location = location if ":" in location else str(roots / location)
    with pytest.raises((SourceError, UsageError), match=message):
        find(location, [], {})
    assert convert(f"root:{location}", tmp_path / "out") == EXIT_USAGE
    assert not (tmp_path / "out").exists()
