"""Serialisation of an episode as one ``tf.train.Example``, laid out as TFDS's own serialiser does.

TFDS's serialiser needs TensorFlow and takes a second for a step of vima.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tensorflow_datasets.proto import tf_example_pb2, tf_feature_pb2

Column = NDArray | Sequence[bytes]
"""All values of one feature in an episode: an array with one row a value, or byte strings."""


def encode_example(columns: Mapping[str, Column]) -> bytes:
    """Serialise columns by their names in the record; the same columns always give the same bytes."""
    features = tf_feature_pb2.Features(feature={column: _feature(values) for column, values in columns.items()})
    return bytes(tf_example_pb2.Example(features=features).SerializeToString(deterministic=True))


def _feature(values: Column) -> tf_feature_pb2.Feature:
    if not isinstance(values, np.ndarray):
        return tf_feature_pb2.Feature(bytes_list=tf_feature_pb2.BytesList(value=values))
    if values.dtype.kind == "f":
        return tf_feature_pb2.Feature(float_list=tf_feature_pb2.FloatList(value=values.ravel().tolist()))
    return tf_feature_pb2.Feature(int64_list=tf_feature_pb2.Int64List(value=values.astype(np.int64).ravel().tolist()))
