"""Pictures and tensors that claim more bytes than they have, or inflate beyond their declared size."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from convert.errors import CorruptFrame, MalformedEpisode
from convert.shard.images import FramePolicy, convert_frame
from convert.source.features import Feature
from convert.source.rlds.parser import EpisodeParser
from convert.verify.command import verify_root
from tests.fixtures.datasets.rlds_dataset import demo_episode, demo_features, serialise
from tests.fixtures.faults.memory_limit import memory_limit


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *, first: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + first + header + chunk(b"IDAT", zlib.compress(bytes(10**5))) + chunk(b"IEND", b"")


def jpeg(height: int, width: int) -> bytes:
    content = bytearray(simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8)))
    path = content.index(b"\xff\xc0")
    content[path + 5 : path + 9] = struct.pack(">HH", height, width)
    return bytes(content)


SMALL_SIZE_FIRST = chunk(b"tEXt", struct.pack(">II", 1, 1) + b"text")


@pytest.mark.parametrize(
    "picture",
    [png(65500, 65500), jpeg(65500, 65500), png(30000, 30000, first=SMALL_SIZE_FIRST)],
    ids=["PNG", "JPEG", "PNG whose size stands where it is not looked for"],
)
def test_a_picture_of_gigabytes_is_refused_before_it_is_decoded(picture: bytes) -> None:
    with memory_limit(1 << 30), pytest.raises(CorruptFrame, match=r"claims 65500x65500|expected b'IHDR'"):
        convert_frame(picture, FramePolicy(size=(16, 16)), channels="rgb")


def test_more_tensors_than_steps_are_refused_before_they_inflate() -> None:
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example.FromString(serialise(demo_features(), demo_episode(2)))
    bomb = zlib.compress(bytes(1 << 24))
    example.features.feature["steps/depth"].bytes_list.value.extend([bomb] * 500)
    camera = Feature(path="steps/observation/image", kind="image", level="step", shape=(None, None, 3), dtype="uint8")
    depth = Feature(path="steps/depth", kind="tensor", level="step", shape=(1 << 24,), dtype="uint8", encoding="zlib")
    with memory_limit(2 << 30), pytest.raises(MalformedEpisode, match="500 stored tensors for 2 steps"):
        EpisodeParser([camera], [depth]).parse(example.SerializeToString())


@pytest.mark.parametrize("name", ["dataset.json", "quarantine.jsonl", "train/steps.arrow"])
def test_verifying_does_not_wait_for_a_pipe(folder: Path, root: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    problems = [problem for problem in verify_root(root, jobs=1).problems if str(problem.file).endswith(name)]
    assert any("device or pipe" in problem.text or "cannot be read" in problem.text for problem in problems)
