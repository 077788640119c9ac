"""All 29 datasets, generated and converted by the commands that users run, against what TFDS decodes of the source.

Each is converted four times: at its native size, where pixels and bytes can be compared one by one; at the default
256x256; where the camera on the wrist is stored with red and blue swapped, from that camera; and as frames of all
cameras.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from convert.doctor.command import examine
from convert.registry.registry import DatasetSpec, Part
from stream.format.manifest import Statistics
from stream.format.names import VECTORS
from stream.format.schema import EPISODE_FIELDS, STEP_FIELDS
from tests.fixtures.datasets.converted_dataset import ConvertedDataset
from tests.fixtures.datasets.oxe29_sample import (
    NAMES,
    SELECTED,
    SWAPPED_WRISTS,
    make_and_convert,
    read_converted,
    read_reference,
)
from tests.fixtures.index_reference import column_name, instruction_of, is_kept, unequal
from tests.fixtures.shared_folder import run_folder, shared_folder
from tests.fixtures.tfds_reference import Reference, decode_jpeg, resize, summary

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]

# Mean and largest difference in 0 to 255 that a JPEG of quality 95 with 4:2:0 chroma may make; measured: 2.3 and 63.
MEAN_ERROR, LARGEST_ERROR = 3.0, 96


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with `source`, `native`, `default` and `wrist`."""
    with shared_folder(run_folder(tmp_path_factory) / "oxe29", make_and_convert) as folder:
        yield folder


@pytest.fixture(params=NAMES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    """A dataset, in the outer loop, so that TFDS reads each of them once."""
    return str(request.param)


@pytest.fixture
def spec(name: str) -> DatasetSpec:
    return SELECTED[name].spec


@pytest.fixture
def reference(root: Path, name: str) -> Reference:
    return read_reference(root, name)


@pytest.fixture
def converted(root: Path, name: str) -> ConvertedDataset:
    return read_converted(root, "native", name)


def picture(reference: Reference, tfds_id: str, step: int, *, camera: str, spec: DatasetSpec) -> np.ndarray:
    """A frame as TFDS decodes it, with red and blue put right, int [H, W, 3]."""
    stored = reference.picture(tfds_id, step, camera=camera).astype(np.int16)
    return stored[:, :, ::-1] if spec.camera(camera).channels == "bgr" else stored


def difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).mean())


# Which episodes, steps and pairs there are


@pytest.mark.long
def test_episodes_bear_the_ids_of_tfds_in_its_order(
    converted: ConvertedDataset, reference: Reference, name: str
) -> None:
    for split in reference.splits:
        actual = [
            (row["episode_id"], f"{row['source_file']}__{row['source_position']}", row["num_steps"], row["status"])
            for shard in converted.shards
            if shard.split == split
            for row in shard.episodes.to_pylist()
        ]
        expected = [(e.tfds_id, e.tfds_id, len(e.steps), "ok") for e in reference.of_split(split)]
        assert actual == expected


def test_every_step_that_has_one_an_offset_later_starts_a_pair(
    converted: ConvertedDataset, reference: Reference, name: str
) -> None:
    offset = SELECTED[name].offset
    assert isinstance(offset, int)
    actual = [(pair.episode_id, pair.step, pair.offset) for pair in converted.pairs]
    expected = [(e.tfds_id, step, offset) for e in reference.episodes.values() for step in range(len(e.steps) - offset)]
    assert converted.manifest.parameters["frame_offsets"] == [0, offset]
    assert actual
    assert sorted(actual) == sorted(expected)


def test_the_manifest_counts_what_there_is_and_nothing_is_left_out(
    converted: ConvertedDataset, reference: Reference, name: str
) -> None:
    offset = SELECTED[name].offset
    assert isinstance(offset, int)
    manifest = converted.manifest
    lengths = {split: [len(episode.steps) for episode in reference.of_split(split)] for split in reference.splits}
    assert {split: (entry.episodes, entry.steps, entry.records) for split, entry in manifest.splits.items()} == {
        split: (len(counts), sum(counts), sum(max(count - offset, 0) for count in counts))
        for split, counts in lengths.items()
    }
    assert manifest.left_out == {}
    assert manifest.quarantine is None


# Frames


def test_frames_are_those_of_the_step_and_of_the_step_an_offset_later(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec
) -> None:
    assert_frames(converted, reference, spec=spec, camera=spec.primary.path)


@pytest.mark.parametrize("name", SWAPPED_WRISTS, scope="module")
def test_swapped_colours_of_a_wrist_camera_are_put_right(
    root: Path, reference: Reference, name: str, spec: DatasetSpec
) -> None:
    assert_frames(read_converted(root, "wrist", name), reference, spec=spec, camera=SWAPPED_WRISTS[name])


def assert_frames(converted: ConvertedDataset, reference: Reference, *, spec: DatasetSpec, camera: str) -> None:
    """Frames are within JPEG tolerance of their step, of no other as near, and not with red and blue swapped."""
    for pair in converted.some_pairs():
        assert len(pair.frames) == 2
        for step, frame in zip((pair.step, pair.step + pair.offset), pair.frames, strict=True):
            arguments = f"{pair.episode_id} step {step}"
            actual = decode_jpeg(frame).astype(np.int16)
            expected = picture(reference, pair.episode_id, step, camera=camera, spec=spec)
            assert actual.shape == expected.shape
            error = difference(actual, expected)
            assert error <= MEAN_ERROR, arguments
            assert np.abs(actual - expected).max() <= LARGEST_ERROR, arguments
            for second in {step - 1, step + 1} & set(range(len(reference.episodes[pair.episode_id].steps))):
                beside = picture(reference, pair.episode_id, second, camera=camera, spec=spec)
                assert difference(actual, beside) > error, f"{arguments} is nearer to step {second}"
            assert difference(actual[:, :, ::-1], expected) > 4 * MEAN_ERROR, arguments


def test_jpegs_that_fit_are_kept_byte_for_byte_and_all_else_is_encoded_once(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec
) -> None:
    camera = spec.primary
    used = {(pair.episode_id, step) for pair in converted.pairs for step in (pair.step, pair.step + pair.offset)}
    fits = camera.storage == "jpeg" and camera.channels != "bgr"
    counts = {key: converted.manifest.image[key] for key in ("passed", "transcoded")}
    assert counts == {"passed": len(used) * fits, "transcoded": len(used) * (not fits)}
    if fits:
        for pair in converted.pairs:
            steps = reference.episodes[pair.episode_id].steps
            expected = [steps[step][camera.path] for step in (pair.step, pair.step + pair.offset)]
            assert pair.frames == expected, f"{pair.episode_id} step {pair.step}"


def test_frames_of_the_default_size_show_the_same_picture(root: Path, reference: Reference, spec: DatasetSpec) -> None:
    for pair in read_converted(root, "default", spec.name).some_pairs():
        for step, frame in zip((pair.step, pair.step + pair.offset), pair.frames, strict=True):
            actual = decode_jpeg(frame)
            assert actual.shape == (256, 256, 3)
            expected = picture(reference, pair.episode_id, step, camera=spec.primary.path, spec=spec)
            assert difference(actual, resize(expected, 256, 256)) <= MEAN_ERROR
            assert difference(actual[:, :, ::-1], resize(expected, 256, 256)) > 4 * MEAN_ERROR


def test_the_layout_frames_has_every_frame_of_every_camera_once(
    root: Path, converted: ConvertedDataset, reference: Reference, spec: DatasetSpec
) -> None:
    frames = read_converted(root, "frames", spec.name)
    pairs = {(pair.episode_id, pair.step + at): frame for pair in converted.pairs for at, frame in pair.both}
    cameras = [camera for camera in spec.cameras.values() if camera.kind == "colour"]
    expected = [
        (e.tfds_id, number, step)
        for split in reference.splits
        for e in reference.of_split(split)
        for number in range(len(cameras))
        for step in range(len(e.steps))
    ]
    actual = []
    for shard in frames.shards:
        numbers = shard.records["camera"].to_pylist()
        for record, (number, frame) in enumerate(zip(numbers, shard.pairs, strict=True)):
            camera, key = cameras[number], (frame.episode_id, frame.step)
            actual.append((frame.episode_id, number, frame.step))
            (stored,) = shard.frames(record)
            if camera.storage == "jpeg" and camera.channels == "rgb":
                assert stored == reference.episodes[frame.episode_id].steps[frame.step][camera.path]
            elif camera.role == "primary" and key in pairs:
                assert stored == pairs[key]
            elif frame.step in (0, 5):
                wanted_pixels = picture(reference, *key, camera=camera.path, spec=spec)
                assert difference(decode_jpeg(stored).astype(np.int16), wanted_pixels) <= MEAN_ERROR
    assert sorted(actual) == sorted(expected)
    assert actual


# Everything else of the source


def test_every_feature_of_every_step_and_episode_is_what_tfds_decodes_without_padding(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec
) -> None:
    leaves = [leaf for leaf in reference.leaves.values() if is_kept(leaf, spec)]
    assert not all(leaf.is_text for leaf in leaves)
    assert unequal(converted, reference, leaves) == []


def test_columns_have_the_declared_types_and_doubles_the_floats_that_are_stored(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec
) -> None:
    for leaf in reference.leaves.values():
        if is_kept(leaf, spec):
            split = next(iter(converted.splits.values()))
            table = split.steps if leaf.of_steps else split.episodes
            column = table.schema.field(column_name(leaf))
            declared = np.dtype(leaf.connector.np_dtype)
            stored = np.dtype(np.float32) if declared == np.float64 else declared
            expected = pa.large_string() if leaf.is_text else pa.from_numpy_dtype(stored)
            assert innermost(column.type) == expected, leaf.name
            assert column.metadata[b"dtype"].decode() == ("string" if leaf.is_text else stored.name)
            assert column.metadata[b"shape"].decode() == str(list(leaf.shape))


def innermost(kind: pa.DataType) -> pa.DataType:
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return kind


def test_the_index_has_every_feature_but_those_that_the_registry_leaves_out(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec
) -> None:
    kept = [leaf for leaf in reference.leaves.values() if is_kept(leaf, spec)]
    derived = set(spec.vectors)
    message = {"success"} if spec.success_path else set()
    for split in converted.splits.values():
        steps = {column_name(leaf) for leaf in kept if leaf.of_steps}
        assert set(split.steps.column_names) == steps | derived | {field.name for field in STEP_FIELDS}
        episodes = {column_name(leaf) for leaf in kept if not leaf.of_steps}
        assert set(split.episodes.column_names) == episodes | message | {field.name for field in EPISODE_FIELDS}


@pytest.mark.parametrize("vector", VECTORS)
def test_derived_columns_are_the_vectors_of_the_values_that_tfds_decodes(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec, vector: str
) -> None:
    parts: tuple[Part, ...] = getattr(spec, vector)
    for split in reference.splits if parts else ():
        column = converted.splits[split].steps[vector].combine_chunks()
        actual = column.flatten().to_numpy().reshape(len(column), -1)
        np.testing.assert_array_equal(actual, reference.vectors(split, parts).astype(np.float32))


# The instruction


def test_the_instruction_of_a_pair_is_that_of_its_first_step(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec
) -> None:
    texts = []
    for pair in converted.pairs:
        episode = reference.episodes[pair.episode_id]
        expected = instruction_of(episode.steps[pair.step], episode.values, spec)
        actual = pair.row("episode", "step", "language")
        ids = pair.shard.index.episodes["episode_id"]
        assert (ids[actual["episode"]].as_py(), actual["step"]) == (pair.episode_id, pair.step)
        assert actual["language"] == expected
        texts.append(expected)
    assert any(texts)


def test_the_instruction_of_an_episode_is_its_first_that_is_not_empty(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec
) -> None:
    for shard in converted.shards:
        for row in shard.episodes.to_pylist():
            episode = reference.episodes[row["episode_id"]]
            texts = [instruction_of(step, episode.values, spec) for step in episode.steps]
            assert row["language"] == next(filter(None, texts), "")


def test_the_robot_is_the_one_that_the_registry_or_the_episode_names(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec
) -> None:
    for shard in converted.shards:
        for row in shard.episodes.to_pylist():
            episode = reference.episodes[row["episode_id"]]
            named = {**episode.values, **episode.steps[0]}.get(spec.robot_path or "", (spec.robot or "").encode())
            assert row["robot"] == named.decode()


# Statistics


@pytest.mark.parametrize("vector", ["action", "state"])
def test_statistics_are_those_of_the_values_that_tfds_decodes(
    converted: ConvertedDataset, reference: Reference, spec: DatasetSpec, vector: str
) -> None:
    parts: tuple[Part, ...] = getattr(spec, vector)
    for split in reference.splits:
        statistics: dict[Any, Statistics] = dict(converted.manifest.statistics[split])
        if not parts:
            assert vector not in statistics
            continue
        values = reference.vectors(split, parts)
        actual = statistics[vector]
        assert actual.count == len(values)
        assert len(actual.names) == values.shape[1]
        assert actual.nonfinite == (0,) * values.shape[1]
        for key, numbers in summary(values).items():
            np.testing.assert_allclose(getattr(actual, key), numbers, rtol=1e-5, atol=1e-8, err_msg=key)


# The doctor


@pytest.mark.long
def test_the_doctor_finds_no_fault_of_a_space(root: Path) -> None:
    actual = examine(root / "native", frames=2).findings
    assert [finding for finding in actual if finding.rule.name.startswith("space_")] == []


# The code


@pytest.mark.parametrize("package", ["convert", "beam_jobs", "stream"])
def test_no_code_knows_a_dataset_by_name(package: str) -> None:
    names = {*NAMES, *(spec.tfds_name for _, spec in SELECTED.values())}
    word = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, sorted(names)))})(?![A-Za-z0-9])")
    actual = []
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = code_word(node)
            # openpi's own loader for DROID is a trainer's, and named so.
            if (match := word.search(text)) and not path.match("stream/adapters/openpi.py"):
                actual.append(f"{path.relative_to(REPOSITORY)}: {match[0]} in {text!r}")
    assert actual == []


def code_word(node: ast.AST) -> str:
    """An identifier, or a text without spaces: prose and examples may name datasets, what is compared with may not."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if " " not in node.value else ""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    return ""
