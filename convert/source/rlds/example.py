"""``tf.train.Example`` with its numbers left encoded: memory holds only the numbers that are decoded.

TensorFlow's message turns each integer, and so each pixel, into eight bytes. The message here has the same wire format,
but keeps a list of numbers as the bytes of its packed field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from convert.errors import MalformedEpisode

_BLOCK_BYTES = 1 << 18
_MAX_INTEGER_BYTES = 10
"""Bytes of an integer of 64 bits in which each byte has seven."""
_LISTS = ("BytesList", "FloatList", "Int64List")
_SCHEMA = """
name: "example.proto" package: "lazy" syntax: "proto3"
message_type {
  name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".lazy.Features" }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".lazy.Features.FeatureEntry" }
  nested_type {
    name: "FeatureEntry"
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".lazy.Feature" }
    options { map_entry: true }
  }
}
message_type {
  name: "Feature"
  field { name: "bytes_list" number: 1 oneof_index: 0 type: TYPE_MESSAGE type_name: ".lazy.BytesList" }
  field { name: "float_list" number: 2 oneof_index: 0 type: TYPE_MESSAGE type_name: ".lazy.FloatList" }
  field { name: "int64_list" number: 3 oneof_index: 0 type: TYPE_MESSAGE type_name: ".lazy.Int64List" }
  oneof_decl { name: "kind" }
}
"""
"""TensorFlow's schema, but for the lists. Workers, which only parse records, start in half the time without TFDS."""


def _lazy_example() -> Any:
    file_proto = text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto())
    for name in _LISTS:
        value = file_proto.message_type.add(name=name).field.add(name="value", number=1)
        value.type, value.label = value.TYPE_BYTES, value.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file_proto)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("lazy.Example"))


_Example = _lazy_example()


def parse_example(record: bytes) -> Mapping[str, Any]:
    """Return the features of a record by name; raises MalformedEpisode if it is not a ``tf.train.Example``."""
    try:
        features: Mapping[str, Any] = _Example.FromString(record).features.feature
    except DecodeError as error:
        raise MalformedEpisode(f"not a tf.train.Example ({error})") from None
    return features


def read_floats(number_list: Any, *, name: str) -> np.ndarray:
    """Return a ``FloatList`` as float32 [n]."""
    packed = _packed(number_list)
    if len(packed) % 4:
        raise MalformedEpisode(f"{name}: {len(packed)} bytes of floats, expected a multiple of 4")
    return np.frombuffer(packed, "<f4")


def count_integers(numbers: Any, *, name: str) -> int:
    """Return the length of an ``Int64List``; raises MalformedEpisode where ``read_integers`` would."""
    return sum(len(end_positions) for _, end_positions in _blocks(numbers, name))


def read_integers(numbers: Any, *, name: str) -> Iterator[np.ndarray]:
    """Yield an ``Int64List`` in pieces, int64 [n]; raises MalformedEpisode if one is too long or cut short."""
    for block, end_positions in _blocks(numbers, name):
        start_positions = np.concatenate([[0], end_positions[:-1] + 1])
        lengths = end_positions - start_positions + 1
        values = np.zeros(len(end_positions), np.uint64)
        for byte_number in range(lengths.max()):
            has_byte = lengths > byte_number
            byte_bits = block[start_positions[has_byte] + byte_number].astype(np.uint64) & np.uint64(0x7F)
            values[has_byte] |= byte_bits << np.uint64(7 * byte_number)
        yield values.view(np.int64)


def _blocks(numbers: Any, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of bytes, uint8 [n], each with the positions at which an integer ends."""
    packed, block_start = np.frombuffer(_packed(numbers), np.uint8), 0
    while block_start < len(packed):
        block = packed[block_start : block_start + _BLOCK_BYTES]
        # The last byte of an integer has no highest bit.
        end_positions = np.flatnonzero(block < 0x80)
        if not len(end_positions) or np.diff(end_positions, prepend=-1).max() > _MAX_INTEGER_BYTES:
            fault = f"an integer of more than {_MAX_INTEGER_BYTES} bytes, or one that is cut short"
            raise MalformedEpisode(f"{name}: {fault}")
        yield block, end_positions
        block_start += int(end_positions[-1]) + 1


def _packed(number_list: Any) -> bytes:
    if len(UnknownFieldSet(number_list)):
        # A list may also be stored number by number.
        from tensorflow_datasets.proto import tf_feature_pb2

        complete_type = getattr(tf_feature_pb2, number_list.DESCRIPTOR.name)
        complete_list = complete_type.FromString(number_list.SerializeToString())
        number_list = type(number_list).FromString(complete_list.SerializeToString())
    return number_list.value[0] if len(number_list.value) == 1 else b"".join(number_list.value)
