"""Serialisation of an episode's columns as one ``tf.train.Example``, laid out as TFDS's own serialiser does.

TFDS's serialiser needs TensorFlow and takes a second for a step of vima.
Source of the names: tensorflow_datasets/core/example_serializer.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tensorflow_datasets.proto import tf_example_pb2, tf_feature_pb2


@dataclass(frozen=True, kw_only=True)
class SampleColumn:
    """All values of one feature in an episode.

    Attributes:
        values: Array with one row a value, or byte strings.
        row_lengths: Number of items of each row, outermost level first, for features with sequences inside the steps;
            None for other features.
    """

    values: NDArray | Sequence[bytes]
    row_lengths: tuple[Sequence[int], ...] | None = None


def encode_example(columns: Mapping[str, SampleColumn]) -> bytes:
    """Serialise columns by their flattened TFDS names; the same columns always give the same bytes."""
    features = {}
    for path, column in columns.items():
        ragged = column.row_lengths is not None
        features[f"{path}/ragged_flat_values" if ragged else path] = _feature(column.values)
        for level, lengths in enumerate(column.row_lengths or ()):
            features[f"{path}/ragged_row_lengths_{level}"] = _feature(np.asarray(lengths, np.int64))
    example = tf_example_pb2.Example(features=tf_feature_pb2.Features(feature=features))
    serialised: bytes = example.SerializeToString(deterministic=True)
    return serialised


def _feature(values: NDArray | Sequence[bytes]) -> tf_feature_pb2.Feature:
    if not isinstance(values, np.ndarray):
        return tf_feature_pb2.Feature(bytes_list=tf_feature_pb2.BytesList(value=values))
    if values.dtype.kind == "f":
        return tf_feature_pb2.Feature(float_list=tf_feature_pb2.FloatList(value=values.ravel().tolist()))
    return tf_feature_pb2.Feature(int64_list=tf_feature_pb2.Int64List(value=values.astype(np.int64).ravel().tolist()))
