"""The bytes of a stored frame depend on its pixels only, whatever was in memory before."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from convert.shard.images import FramePolicy, convert_frame
from convert.shard.video import CRF, encode_chunk
from stream.format.frame import CODECS, Codec
from stream.format.video import VIDEO_CODECS
from tests.fixtures.command import REPOSITORY

SIZES = ((16, 16), (20, 36), (33, 41), (48, 48), (60, 80), (64, 80), (100, 100))
COUNTS = (4, 12)
_PROGRAM = """
from tests.convert.shard.test_same_bytes import SIZES, encode, noise
import hashlib, sys
print(hashlib.sha256(b"".join(encode(sys.argv[1], noise(size, 4)) for size in SIZES[:5])).hexdigest())
"""


def noise(size: tuple[int, int], count: int) -> list[np.ndarray]:
    """Return random pictures, uint8 [H, W, 3]."""
    random = np.random.default_rng(count)
    return [random.integers(0, 256, (*size, 3), dtype=np.uint8) for _ in range(count)]


def encode(codec: Codec, frames: list[np.ndarray]) -> bytes:
    policy = FramePolicy(size=None, codec=codec)
    if codec in VIDEO_CODECS:
        policy = FramePolicy(size=None, codec=codec, gop=len(frames), crf=CRF[codec])
        chunk, _ = encode_chunk([convert_frame(frame, policy, channels="rgb") for frame in frames], policy)
        assert chunk is not None
        return chunk
    return b"".join(convert_frame(frame, policy, channels="rgb").data for frame in frames)


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_pictures_of_several_sizes_give_the_same_bytes_in_any_order(codec: Codec) -> None:
    random = np.random.default_rng(1)
    clips = [noise(size, count) for size in SIZES for count in COUNTS]
    first: dict[int, bytes] = {}
    for turn in range(500 if codec == "h264" else 60):
        number = int(random.integers(len(clips)))
        # Memory that is allocated next holds random bytes.
        dirt = [bytearray(random.bytes(int(random.integers(1_000, 300_000)))) for _ in range(5)]
        del dirt
        encoded = encode(codec, clips[number])
        assert first.setdefault(number, encoded) == encoded, turn


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_bytes_are_the_same_whatever_new_memory_is_filled_with(codec: Codec) -> None:
    found = set()
    for fill in ("0", "85", "170"):
        command = [sys.executable, "-c", _PROGRAM, codec]
        environment = {**os.environ, "MALLOC_PERTURB_": fill}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        found.add(done.stdout)
    expected = hashlib.sha256(b"".join(encode(codec, noise(size, 4)) for size in SIZES[:5])).hexdigest()
    assert found == {f"{expected}\n"}
