"""``tf.train.Example`` with its numbers left as they are stored: memory holds only the numbers that are decoded.

TensorFlow's message makes eight bytes of each integer, of a pixel too. The message here is the same on the wire, but it
takes a list of numbers as the bytes of its packed field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from tensorflow_datasets.proto import tf_example_pb2, tf_feature_pb2

from convert.errors import MalformedEpisode

_BLOCK = 1 << 18
_LONGEST = 10
"""Bytes of an integer of 64 bits in which each byte has seven."""
_LISTS = {"FloatList": tf_feature_pb2.FloatList, "Int64List": tf_feature_pb2.Int64List}


def _lazy_example() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in (tf_feature_pb2, tf_example_pb2):
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for message in file.message_type:
            if message.name in _LISTS:
                message.field[0].type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
                message.field[0].ClearField("options")
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(tf_example_pb2.Example.DESCRIPTOR.full_name))


_Example = _lazy_example()


def parse_example(record: bytes) -> Mapping[str, Any]:
    """Return the features of a record by name; raises MalformedEpisode if it is no ``tf.train.Example``."""
    try:
        features: Mapping[str, Any] = _Example.FromString(record).features.feature
    except DecodeError as error:
        raise MalformedEpisode(f"not a tf.train.Example ({error})") from None
    return features


def read_floats(numbers: Any, *, name: str) -> np.ndarray:
    """Return a ``FloatList`` as float32 [n]."""
    packed = _packed(numbers)
    if len(packed) % 4:
        raise MalformedEpisode(f"{name}: {len(packed)} bytes of floats, expected a multiple of 4")
    return np.frombuffer(packed, "<f4")


def count_integers(numbers: Any, *, name: str) -> int:
    """Return the length of an ``Int64List``; raises MalformedEpisode where ``read_integers`` would."""
    return sum(len(ends) for _, ends in _blocks(numbers, name))


def read_integers(numbers: Any, *, name: str) -> Iterator[np.ndarray]:
    """Yield an ``Int64List`` as arrays of some integers each, int64 [n].

    Raises:
        MalformedEpisode: An integer is too long or cut short.
    """
    for block, ends in _blocks(numbers, name):
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = ends - starts + 1
        values = np.zeros(len(ends), np.uint64)
        for place in range(lengths.max()):
            longer = lengths > place
            bits = block[starts[longer] + place].astype(np.uint64) & np.uint64(0x7F)
            values[longer] |= bits << np.uint64(7 * place)
        yield values.view(np.int64)


def _blocks(numbers: Any, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield some bytes at a time, uint8 [n], each with the places where an integer ends."""
    packed, start = np.frombuffer(_packed(numbers), np.uint8), 0
    while start < len(packed):
        block = packed[start : start + _BLOCK]
        # The last byte of an integer has no highest bit.
        ends = np.flatnonzero(block < 0x80)
        if not len(ends) or np.diff(ends, prepend=-1).max() > _LONGEST:
            raise MalformedEpisode(f"{name}: an integer of more than {_LONGEST} bytes, or one that is cut short")
        yield block, ends
        start += int(ends[-1]) + 1


def _packed(numbers: Any) -> bytes:
    if len(UnknownFieldSet(numbers)):
        # A list may also be written number by number.
        whole = _LISTS[numbers.DESCRIPTOR.name].FromString(numbers.SerializeToString())
        numbers = type(numbers).FromString(whole.SerializeToString())
    return numbers.value[0] if len(numbers.value) == 1 else b"".join(numbers.value)
