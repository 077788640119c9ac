from pathlib import Path

import numpy as np
import pytest

from convert.plan import Options
from convert.run.estimate import Estimate, estimate
from convert.shard.images import FramePolicy
from convert.source.rlds.tfrecord import encode_tfrecord
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, demo_features, serialise, write_dataset


def test_the_estimate_for_episodes_alike_is_what_comes_out(tmp_path: Path) -> None:
    shards = [[demo_episode(8, seed=seed) for seed in range(start, start + 12)] for start in (0, 12)]
    conversion = write_dataset(tmp_path, splits={"train": shards}).conversion(tmp_path / "out")
    found = estimate(conversion)
    manifest = convert_dataset(conversion)
    assert manifest.records == 24 * 6
    written = sum(shard.file.bytes for shard in manifest.splits["train"].shards)
    assert found.pairs == pytest.approx(manifest.records, rel=0.1)
    assert found.bytes == pytest.approx(written, rel=0.35)


def test_more_frames_a_pair_take_more_room(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[demo_episode(8)]]})
    two, three = (
        estimate(dataset.conversion(tmp_path / "out", Options(frames=frames))) for frames in ("endpoints", "all")
    )
    assert two.pairs == three.pairs
    assert two.bytes is not None
    assert three.bytes == two.bytes * 3 // 2


def test_only_the_chosen_episodes_count(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[demo_episode(8, seed=seed) for seed in range(20)]]})
    whole, half = (estimate(dataset.conversion(tmp_path / "out", Options(episodes=f"train[:{n}]"))) for n in (20, 10))
    assert whole.pairs is not None
    assert half.pairs == pytest.approx(whole.pairs / 2, abs=1)


def test_the_beginning_of_a_damaged_file_is_enough(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[demo_episode(8), demo_episode(8, seed=1)]]})
    path = dataset.shard()
    path.write_bytes(path.read_bytes()[:-5])
    found = estimate(dataset.conversion(tmp_path / "out"))
    assert found.pairs == pytest.approx(12, abs=1)


def test_records_that_are_no_episodes_are_passed_over(tmp_path: Path) -> None:
    bad_frame = demo_episode(8)
    bad_frame["steps"][0]["observation"]["image"] = b"damaged"
    good = serialise(demo_features(), demo_episode(8, seed=1))
    dataset = write_dataset(tmp_path, splits={"train": [[b"\xff\xff", bad_frame, good]]})
    found = estimate(dataset.conversion(tmp_path / "out"))
    size = dataset.shard().stat().st_size
    assert found.pairs == round(6 / len(good) * size)


@pytest.mark.parametrize("record", [b"\xff\xff", serialise(demo_features(), demo_episode(0))], ids=["damaged", "empty"])
def test_without_any_readable_episode_nothing_is_claimed_to_come_out(tmp_path: Path, record: bytes) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[record]]})
    assert estimate(dataset.conversion(tmp_path / "out")) in (
        Estimate(pairs=None, bytes=None),
        Estimate(pairs=0, bytes=0),
    )


def test_a_file_that_does_not_begin_with_a_record_gives_no_estimate(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[demo_episode(8)]]})
    dataset.shard().write_bytes(bytes(len(encode_tfrecord(b"")) + 30))
    assert estimate(dataset.conversion(tmp_path / "out")) == Estimate(pairs=None, bytes=None)


def test_nothing_is_written(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [[demo_episode(8)]]})
    conversion = dataset.conversion(tmp_path / "out", Options(policy=FramePolicy(size=(16, 16))))
    before = sorted(tmp_path.rglob("*"))
    found = estimate(conversion)
    assert sorted(tmp_path.rglob("*")) == before
    assert found.bytes is not None
    assert np.isfinite(found.bytes)
