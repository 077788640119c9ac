"""Generated episodes as records: TFDS reads back what was put in, and would write the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.example_serializer import ExampleSerializer
from tensorflow_datasets.proto import tf_example_pb2

from convert.sample.episode import Episode
from convert.sample.record import Column, encode_example
from convert.sample.source import SampleSource
from convert.source.features import Feature
from tests.fixtures.datasets.sampled import REGISTRY


def values_in(columns: dict[str, Column], feature: Feature) -> Any:
    """What was put in: the values of a feature, without the lengths of sequences."""
    return columns[feature.path if feature.path in columns else f"{feature.path}/ragged_flat_values"]


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
