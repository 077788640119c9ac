"""The bytes of a stored frame depend on its pixels only, whatever was in memory before."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Literal

import numpy as np
import pytest

from convert.shard.depth import convert_depth
from convert.shard.images import FramePolicy, convert_frame
from convert.shard.video import CRF, encode_chunk
from stream.format.frame import CODECS, Codec
from stream.format.video import VIDEO_CODECS
from tests.fixtures.command import REPOSITORY
from tests.fixtures.datasets.rlds_dataset import png

Kind = Codec | Literal["depth"]
KINDS: tuple[Kind, ...] = (*CODECS, "depth")
SIZES = ((16, 16), (20, 36), (33, 41), (48, 48), (60, 80), (64, 80), (100, 100))
COUNTS = (12, 30)
"""Frames of a clip; what memory held shows in long ones of H.264 most."""
_PROGRAM = "from tests.convert.shard.test_same_bytes import hashes; print(hashes())"


def noise(size: tuple[int, int], count: int) -> list[np.ndarray]:
    """Return random pictures, uint8 [H, W, 3]."""
    random = np.random.default_rng(count)
    return [random.integers(0, 256, (*size, 3), dtype=np.uint8) for _ in range(count)]


def encode(kind: Kind, frames: list[np.ndarray]) -> bytes:
    """Return what is stored of some frames; ``depth`` takes them as PNGs of 16 bits."""
    if kind == "depth":
        maps = [png(frame[:, :, 0].astype(np.uint16) * 257 + frame[:, :, 1]) for frame in frames]
        return b"".join(convert_depth(depth, FramePolicy(size=(24, 31)), scale=0.5).data for depth in maps)
    policy = FramePolicy(size=None, codec=kind)
    if kind in VIDEO_CODECS:
        policy = FramePolicy(size=None, codec=kind, gop=len(frames), crf=CRF[kind])
        chunk, _ = encode_chunk([convert_frame(frame, policy, channels="rgb") for frame in frames], policy)
        assert chunk is not None
        return chunk
    return b"".join(convert_frame(frame, policy, channels="rgb").data for frame in frames)


def hashes() -> dict[Kind, str]:
    """Return the hash of pictures of several sizes, by their kind."""
    return {
        kind: hashlib.sha256(b"".join(encode(kind, noise(size, 4)) for size in SIZES[:5])).hexdigest() for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_of_several_sizes_give_the_same_bytes_in_any_order(kind: Kind) -> None:
    random = np.random.default_rng(1)
    clips = [noise(size, count) for size in SIZES for count in COUNTS]
    first: dict[int, bytes] = {}
    for turn in range(60):
        number = int(random.integers(len(clips)))
        # Memory that is allocated next holds random bytes.
        dirt = [bytearray(random.bytes(int(random.integers(1_000, 300_000)))) for _ in range(5)]
        del dirt
        encoded = encode(kind, clips[number])
        assert first.setdefault(number, encoded) == encoded, turn


@pytest.mark.long
def test_bytes_are_the_same_whatever_new_memory_is_filled_with() -> None:
    for fill in ("0", "85", "170"):
        environment = {**os.environ, "MALLOC_PERTURB_": fill}
        command = [sys.executable, "-c", _PROGRAM]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        assert done.stdout == f"{hashes()}\n"
