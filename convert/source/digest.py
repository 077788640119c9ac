"""Sizes and digests of the files of a source; a folder that is one file of a dataset, as of Zarr, counts as a whole."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

_HASHED = 64 << 20
"""Bytes of a file, or of samples of a larger one, that its digest covers."""


def path_size(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size


def digest_path(path: Path) -> str:
    """Return a SHA-256 in hex of a file or of all files of a folder: of large ones of their size and samples."""
    found = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    stamps = [_stamp(each) for each in found]
    # Of a large folder, the content of evenly spaced files, and the size of all.
    every = max(1, sum(size for size, _ in stamps) // _HASHED)
    parts = [
        f"{each.relative_to(path)} {_digest(each, *stamp) if number % every == 0 else stamp[0]}"
        for number, (each, stamp) in enumerate(zip(found, stamps, strict=True))
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, _changed: int) -> str:
    """Return the SHA-256 of a file, of a large one of evenly spaced samples; each process reads a file once."""
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= _HASHED:
            digest.update(file.read())
        else:
            step = 1 << 20
            for start in range(0, size, max(size // (_HASHED // step), step)):
                file.seek(start)
                digest.update(file.read(step))
            file.seek(size - step)
            digest.update(file.read(step))
    return digest.hexdigest()
