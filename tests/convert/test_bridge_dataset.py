"""Real episodes of BridgeData V2, converted by the command, against their TFRecord and what TFDS decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.run.command import main
from stream.format.names import TableKind
from stream.format.schema import feature_column
from tests.fixtures.command import run, tree
from tests.fixtures.datasets.converted_dataset import ConvertedDataset, open_converted
from tests.fixtures.tfds_reference import Reference

NAME, VERSION = "bridge_dataset", "1.0.0"
EPISODES, STEPS, OFFSET = 25, 10, 5
SPLITS = ("train", "val")


@pytest.fixture(scope="module")
def reference(shared_data: Path) -> Reference:
    """What TFDS decodes."""
    return Reference(shared_data / NAME / VERSION)


@pytest.fixture(scope="module")
def stored(shared_data: Path) -> dict[str, Any]:
    """The features of every record by TFDS's id, as TensorFlow reads them from the TFRecord."""
    tf = pytest.importorskip("tensorflow")
    return {
        f"{path.name}__{position}": tf.train.Example.FromString(record.numpy()).features.feature
        for path in sorted((shared_data / NAME / VERSION).glob("*.tfrecord-*"))
        for position, record in enumerate(tf.data.TFRecordDataset(str(path)))
    }


@pytest.fixture(scope="module")
def native(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> ConvertedDataset:
    """Everything at its native size, embeddings too, by the command in a process of its own with two workers."""
    output = tmp_path_factory.mktemp("native")
    arguments = ["--datasets", NAME, "--source", str(shared_data), "--output", str(output), "--image-size", "native"]
    done = run(*arguments, "--leave-out", "none", "--num-workers", "2")
    assert done.code == 0, done.err
    return open_converted(output, NAME, VERSION)


def images(features: Any, camera: str) -> list[bytes]:
    return list(features[f"steps/{camera}"].bytes_list.value)


def column(converted: ConvertedDataset, name: str, *, split: str, kind: TableKind = "steps") -> list[Any]:
    table = getattr(converted.splits[split], kind)
    values: list[Any] = table[feature_column(kind, name) if kind == "steps" else name].to_pylist()
    return values


def test_25_episodes_of_10_steps_give_125_pairs_in_each_split(native: ConvertedDataset) -> None:
    counts = {name: (split.episodes, split.steps, split.records) for name, split in native.manifest.splits.items()}
    assert counts == dict.fromkeys(SPLITS, (EPISODES, EPISODES * STEPS, 125))
    assert native.manifest.left_out == {}


@pytest.mark.parametrize("split", SPLITS)
def test_every_pair_of_every_episode_is_there_in_the_order_of_the_records(
    native: ConvertedDataset, stored: dict[str, Any], split: str
) -> None:
    actual = [(pair.episode_id, pair.step, pair.offset) for pair in native.pairs if pair.shard.split == split]
    ids = [name for name in stored if f"-{split}." in name]
    assert actual == [(name, step, OFFSET) for name in ids for step in range(STEPS - OFFSET)]
    assert len(actual) == 125


def test_native_frames_are_byte_for_byte_those_of_the_tfrecord(
    native: ConvertedDataset, stored: dict[str, Any]
) -> None:
    for pair in native.pairs:
        jpegs = images(stored[pair.episode_id], "observation/image_0")
        assert pair.frames == [jpegs[pair.step], jpegs[pair.step + OFFSET]], (pair.episode_id, pair.step)
    assert native.manifest.image["sizes"] == {"64x64": 2 * EPISODES * STEPS}
    assert native.manifest.image["transcoded"] == 0


NUMBERS = ["action", "observation/state", "language_embedding", "reward", "discount"]
OTHERS = ["is_first", "is_last", "is_terminal", "language_instruction"]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", NUMBERS + OTHERS)
def test_every_step_has_the_values_that_tfds_decodes(
    native: ConvertedDataset, reference: Reference, split: str, name: str
) -> None:
    values = [step[name] for episode in reference.of_split(split) for step in episode.steps]
    expected = [value.decode() if isinstance(value, bytes) else value.tolist() for value in values]
    assert len(expected) == EPISODES * STEPS
    assert column(native, name, split=split) == expected


@pytest.mark.parametrize("split", SPLITS)
def test_every_episode_has_the_metadata_that_tfds_decodes(
    native: ConvertedDataset, reference: Reference, split: str
) -> None:
    names = [name for name in reference.leaves if name.startswith("/")]
    assert len(names) == 7
    for name in names:
        values = [episode.values[name] for episode in reference.of_split(split)]
        expected = [value.decode() if isinstance(value, bytes) else value.item() for value in values]
        assert column(native, name.removeprefix("/"), split=split, kind="episodes") == expected


def test_an_offset_of_0_6_seconds_is_three_steps_at_5_hz(
    shared_data: Path, tmp_path: Path, stored: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    source = ["--datasets", NAME, "--source", str(shared_data), "--output", str(tmp_path), "--num-workers", "1"]
    assert main([*source, "--offset", "0.6s", "--image-size", "native"]) == 0, capsys.readouterr().err
    converted = open_converted(tmp_path, NAME, VERSION)
    assert {name: split.records for name, split in converted.manifest.splits.items()} == dict.fromkeys(SPLITS, 175)
    for pair in converted.pairs:
        jpegs = images(stored[pair.episode_id], "observation/image_0")
        assert pair.offset == 3
        assert pair.frames == [jpegs[pair.step], jpegs[pair.step + 3]]


def test_a_split_that_is_added_later_leaves_the_first_alone_and_gives_what_both_at_once_give(
    shared_data: Path, tmp_path: Path, native: ConvertedDataset
) -> None:
    source = ["--datasets", NAME, "--source", str(shared_data), "--output", str(tmp_path), "--num-workers", "1"]
    options = [*source, "--image-size", "native", "--leave-out", "none", "--episodes"]
    folder = tmp_path / NAME / VERSION
    assert main([*options, "train"]) == 0
    before = {path: path.stat().st_mtime_ns for path in (folder / "train").iterdir()}
    assert main([*options, "val"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "train").iterdir()} == before
    assert tree(folder) == tree(native.folder)


# Canonical spaces


def vectors(converted: ConvertedDataset, name: str) -> np.ndarray:
    """Return a column of all episodes, float32 [episodes, steps, dims]."""
    rows = [value for split in SPLITS for value in converted.splits[split].steps[name].to_pylist()]
    return np.array(rows, np.float32).reshape(len(SPLITS) * EPISODES, STEPS, -1)


def test_oxe_is_what_openvla_gives_and_octo_but_for_the_first_step(native: ConvertedDataset) -> None:
    actual = vectors(native, "action_oxe")
    with np.load(Path(__file__).parents[1] / "data" / "spaces" / "bridge_dataset.npz") as stored:
        assert stored["lengths"].tolist() == [STEPS] * len(actual)
        openvla, octo = (stored[project].reshape(actual.shape) for project in ("openvla", "octo"))
    np.testing.assert_allclose(actual, openvla, rtol=0, atol=1e-5)
    np.testing.assert_allclose(actual[:, 1:], octo[:, 1:], rtol=0, atol=1e-5)
    assert np.isnan(actual[:, [0, -1]]).all() and np.isfinite(actual[:, 1:-1]).all()


def test_spaces_have_statistics_of_the_steps_that_have_an_action(native: ConvertedDataset) -> None:
    for split in SPLITS:
        actual = native.manifest.statistics[split]["action_oxe"]
        assert actual.names == ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
        assert (actual.count, set(actual.nonfinite)) == (EPISODES * STEPS, {2 * EPISODES})
