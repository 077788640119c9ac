"""Columns of an episode become the bytes of one ``tf.train.Example``, as TFDS's own serialiser lays it out.

TFDS hands every number to protobuf as a Python object, 1 s for a step of vima where this takes 8 ms, and it needs
TensorFlow to encode images. A packed list of numbers is their bytes, so they are joined here.
Sources: tensorflow_datasets/core/example_serializer.py for the names; protobuf.dev for the wire format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class SampleColumn:
    """All values of one feature in an episode.

    values: an array with one row a value, or byte strings. row_lengths: for features with sequences inside the steps,
    how many items each row has, outermost level first; None where there is no such level.
    """

    values: NDArray | Sequence[bytes]
    row_lengths: tuple[Sequence[int], ...] | None = None


def encode_example(columns: Mapping[str, SampleColumn]) -> bytes:
    """Serialise columns by their flattened TFDS names; the same columns always give the same bytes."""
    features: dict[str, bytes] = {}
    for path, column in columns.items():
        if column.row_lengths is None:
            features[path] = _feature(column.values)
        else:
            features[f"{path}/ragged_flat_values"] = _feature(column.values)
            for level, lengths in enumerate(column.row_lengths):
                features[f"{path}/ragged_row_lengths_{level}"] = _feature(np.asarray(lengths, np.int64))
    entries = (_delimited(1, _delimited(1, path.encode()) + _delimited(2, features[path])) for path in sorted(features))
    return _delimited(1, b"".join(entries))


def _feature(values: NDArray | Sequence[bytes]) -> bytes:
    if not isinstance(values, np.ndarray):
        return _delimited(_BYTES, b"".join(_delimited(1, value) for value in values))
    flat = values.reshape(-1)
    if flat.dtype.kind == "f":
        return _delimited(_FLOATS, _delimited(1, flat.astype("<f4").tobytes()) if flat.size else b"")
    return _delimited(_INTEGERS, _integers(flat))


def _integers(flat: NDArray) -> bytes:
    if not flat.size:
        return b""
    if flat.dtype == np.bool_ or (flat.min() >= 0 and flat.max() < 128):
        return _delimited(1, flat.astype(np.uint8).tobytes())
    if flat.dtype == np.uint8:
        # From 128 on a value takes two bytes: its low seven bits with the top bit set, then a one.
        pairs = np.stack([flat, np.ones_like(flat)], axis=1)
        used = np.stack([np.ones(flat.shape, np.bool_), flat >= 128], axis=1)
        return _delimited(1, pairs[used].tobytes())
    return _delimited(1, b"".join(_varint(value & 0xFFFFFFFFFFFFFFFF) for value in flat.tolist()))


def _delimited(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)
