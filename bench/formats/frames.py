"""The frame pairs of the format study: chosen from a converted root or a folder of pictures, kept in one plain file.

All formats are written from this file, so that none of them pays for choosing, resizing or encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simplejpeg

from bench.measure.stored_records import StoredRecords
from convert.shard.images import FramePolicy, convert_frame
from stream.loader.mixed import MixedData, Options, open_mixture
from stream.storage.errors import ArgumentError, FormatError

_LENGTHS = struct.Struct("<II")
_PICTURES = (".jpg", ".jpeg", ".png")

Pair = tuple[bytes, bytes]


@dataclass(frozen=True, kw_only=True)
class PairFile:
    """A file of pairs of JPEGs; iterating gives them in order.

    pairs: how many. height, width: of every frame. frame_bytes: of all JPEGs together.
    """

    path: str
    pairs: int
    height: int
    width: int
    frame_bytes: int

    def __iter__(self) -> Iterator[Pair]:
        with open(self.path, "rb") as file:
            for _ in range(self.pairs):
                first, last = _LENGTHS.unpack(file.read(_LENGTHS.size))
                yield file.read(first), file.read(last)


class RootPairs:
    """Pairs of a converted root, spread evenly over it in storage order.

    Args:
        root, mixture, split: as for ``stream.make_loader``; weights play no part, except that 0 leaves a dataset out.
        pairs: how many, None for all.

    Raises:
        ArgumentError: there is no such root, mixture or split, or it has fewer pairs.
        FormatError: a manifest or an index is damaged.
    """

    def __init__(self, root: str | Path, mixture: str, *, split: str, pairs: int | None) -> None:
        self._data: MixedData = open_mixture(root, mixture, split=split, options=Options(shuffle="none"))
        self._ends = np.cumsum(self._data.views.sizes)
        there = int(self._ends[-1])
        if pairs is not None and pairs > there:
            raise ArgumentError(f"--pairs {pairs}: {mixture} in {root} has {there:,} pairs")
        self.pairs = there if pairs is None else pairs
        self._chosen = np.arange(self.pairs) * there // self.pairs
        # Raises where datasets differ in size.
        _ = self._data.spec

    def estimate(self) -> int:
        """Roughly how many bytes the JPEGs have, from the sizes of the files."""
        splits = self._data.views.splits
        size = sum(int(split.shards.sizes.sum()) for split in splits)
        records = sum(len(split.records) for split in splits)
        return -(-size * self.pairs // max(1, records))

    def __iter__(self) -> Iterator[Pair]:
        views = self._data.views
        member = np.searchsorted(self._ends, self._chosen, side="right")
        position = self._chosen - np.concatenate([[0], self._ends])[member]
        split, record = views.locate(member, np.zeros_like(member), position, seed=0, shuffle=False)
        stored = StoredRecords(views.splits)
        for number, row in zip(split.tolist(), record.tolist(), strict=True):
            frames = stored.frames(number, row)
            if len(frames) != 2:
                raise FormatError(
                    f"{views.splits[number].folder}: record {row} has {len(frames)} frames; the study takes pairs"
                )
            yield bytes(frames[0]), bytes(frames[1])


class PicturePairs:
    """Pairs of consecutive pictures of a folder, in the order of their names, as JPEGs of one size.

    Args:
        folder: with .jpg, .jpeg or .png files.
        size: height and width in pixels; other sizes are stretched to it.
        pairs: how many, None for all.

    Raises:
        ArgumentError: there is no such folder, or it has too few pictures.
        convert.errors.CorruptFrame: from iterating, a picture that cannot be decoded.
    """

    def __init__(self, folder: Path, *, size: int, pairs: int | None) -> None:
        if not folder.is_dir():
            raise ArgumentError(f"--images {folder}: no such folder")
        pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in _PICTURES)
        if len(pictures) < 2:
            raise ArgumentError(
                f"--images {folder}: {len(pictures)} pictures ({', '.join(_PICTURES)}); a pair takes at least 2"
            )
        if pairs is not None and pairs > len(pictures) - 1:
            raise ArgumentError(f"--pairs {pairs}: {folder} has {len(pictures)} pictures, {len(pictures) - 1:,} pairs")
        self.pairs = len(pictures) - 1 if pairs is None else pairs
        self._pictures = pictures[: self.pairs + 1]
        self._policy = FramePolicy(size=(size, size))
        self._size = size

    def estimate(self) -> int:
        """More bytes than the JPEGs are likely to have: a byte a pixel."""
        return 2 * self.pairs * self._size**2

    def __iter__(self) -> Iterator[Pair]:
        before: bytes | None = None
        for path in self._pictures:
            frame = convert_frame(path.read_bytes(), self._policy, channels="rgb").data
            if before is not None:
                yield before, frame
            before = frame


def write_pairs(pairs: Iterable[Pair], path: Path) -> PairFile:
    """Write pairs into one file; all frames must be JPEGs of one size.

    Raises:
        FormatError: a frame has another size than the first one.
    """
    count = frame_bytes = 0
    size: tuple[int, int] | None = None
    with path.open("wb") as file:
        for pair in pairs:
            for frame in pair:
                found = simplejpeg.decode_jpeg_header(frame)[:2]
                size = size or found
                if found != size:
                    raise FormatError(
                        f"pair {count} has a frame of {found[0]}x{found[1]}, the first {size[0]}x{size[1]}"
                    )
            file.write(_LENGTHS.pack(len(pair[0]), len(pair[1])))
            file.writelines(pair)
            count += 1
            frame_bytes += len(pair[0]) + len(pair[1])
    if size is None:
        raise FormatError("no pairs")
    return PairFile(path=str(path), pairs=count, height=size[0], width=size[1], frame_bytes=frame_bytes)


def decode_pair(frames: Iterable[bytes | memoryview], height: int, width: int) -> np.ndarray:
    """Decode the two JPEGs of a pair to uint8 [2, height, width, 3], RGB."""
    pixels = np.empty((2, height, width, 3), np.uint8)
    for number, frame in enumerate(frames):
        simplejpeg.decode_jpeg(frame, buffer=pixels[number])
    return pixels
