"""Generated episodes as records: TFDS reads back what was put in, and would write the same bytes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.example_serializer import ExampleSerializer
from tensorflow_datasets.proto import tf_example_pb2

from convert.sample.episode import Episode
from convert.sample.record import Column, encode_example
from convert.sample.source import SampleSource
from convert.source.features import Feature
from tests.fixtures.datasets.sampled import EPISODES, NAMES, REGISTRY, STEPS, Sample, pixels, read_by_tfds


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_tfds_reads_back_exactly_what_was_put_in(sample: Sample, name: str) -> None:
    source = SampleSource(REGISTRY.dataset(name))
    for split in source.spec.splits:
        read = read_by_tfds(sample(name), split)
        assert [len(episode["steps"]) for episode in read] == [STEPS] * (EPISODES if split == "train" else 1)
        # The others are of the same making; their scenes take most of the time.
        number, episode = len(read) - 1, read[-1]
        columns = Episode(source, split, episode_number=number, num_steps=STEPS, seed=0).columns()
        for feature in source.features:
            stored = values_in(columns, feature)
            actual = values_of(episode, feature)
            if feature.dtype == "string":
                assert flattened(actual) == list(stored), feature.path
            elif feature.kind == "image":
                for picture, image in zip(actual, stored, strict=True):
                    tolerance = 2.0 if image.startswith(b"\xff\xd8") else 0.0
                    expected = pixels(image, depth=picture.dtype == np.float32)
                    assert np.abs(picture.astype(np.float64) - expected).mean() <= tolerance, feature.path
            elif feature.encoding == "zlib":
                assert [row.tobytes() for row in actual] == [zlib.decompress(row) for row in stored]
            else:
                # TFDS gives a declared float64 as such, though a record holds 32 bits of it.
                wide = {"float32": {"float32", "float64"}}.get(feature.dtype, {feature.dtype})
                assert {np.asarray(flat(row)).dtype.name for row in actual} <= wide, feature.path
                numbers = np.concatenate([np.ravel(flat(row)) for row in actual])
                assert np.array_equal(numbers, np.ravel(stored)), feature.path


def values_in(columns: dict[str, Column], feature: Feature) -> Any:
    """What was put in: the values of a feature, without the lengths of sequences."""
    return columns[feature.path if feature.path in columns else f"{feature.path}/ragged_flat_values"]


def values_of(episode: dict[str, Any], feature: Feature) -> list[Any]:
    """What TFDS read of a feature, one value a step, or one in all."""
    if feature.level == "episode":
        return [leaf(episode, feature.path)]
    return [leaf(step, feature.name) for step in episode["steps"]]


def leaf(tree: Any, path: str) -> Any:
    """The value at a flattened name in nested dictionaries whose keys may contain slashes."""
    if not path:
        return tree
    key = next(key for key in tree if path == key or path.startswith(f"{key}/"))
    return leaf(tree[key], path[len(key) + 1 :])


def flat(value: Any) -> Any:
    """The values of a ragged tensor, in one array; anything else as it is."""
    value = getattr(value, "flat_values", value)
    return value.numpy() if hasattr(value, "numpy") else value


def flattened(values: Any) -> list[bytes]:
    """All byte strings in values, arrays and ragged tensors; numpy would cut NULs off their ends."""
    if isinstance(values, bytes):
        return [values]
    return [text for value in flat(values) for text in flattened(value)]


@pytest.mark.parametrize("name", ["tidybot", "droid", "vima_converted_externally_to_rlds"])
def test_a_record_is_what_tfds_itself_would_write(name: str) -> None:
    source = SampleSource(REGISTRY.dataset(name))
    columns = Episode(source, "train", episode_number=1, num_steps=2, seed=0).columns()
    nested: dict[str, Any] = {"steps": [{}, {}]}
    for feature in source.features:
        rows = list(values_in(columns, feature))
        inner = [name for name in columns if name.startswith(f"{feature.path}/ragged_row_lengths_")]
        for lengths in (columns[name] for name in sorted(inner, reverse=True)):
            items = iter(rows)
            rows = [[next(items) for _ in range(int(length))] for length in lengths]
        if feature.level == "step":
            for step, row in zip(nested["steps"], rows, strict=True):
                place(source.tree["steps"].feature, step, feature.path.removeprefix("steps/"), row)
        else:
            place(source.tree, nested, feature.path, rows if feature.sequences else rows[0])
    nested["steps"] = tfds.core.features.sequence_feature.stack_nested(nested["steps"])
    written = ExampleSerializer(source.tree.get_serialized_info()).get_tf_example(nested)
    assert tf_example_pb2.Example.FromString(encode_example(columns)) == written


def place(tree: Any, nested: dict[str, Any], path: str, value: Any) -> None:
    key = next(key for key in tree if path == key or path.startswith(f"{key}/"))
    if path == key:
        nested[key] = value
    else:
        child = tree[key]
        place(getattr(child, "feature", child), nested.setdefault(key, {}), path[len(key) + 1 :], value)
