"""Sizes and digests of the files of a source; a folder such as a Zarr store counts as one file."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

_HASHED = 64 << 20
"""Bytes of a file, or of samples of a larger one, that its digest covers."""


def path_size(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    if path.is_dir():
        return sum(member.stat().st_size for member in path.rglob("*") if member.is_file())
    return path.stat().st_size


def digest_path(path: Path) -> str:
    """Return a SHA-256 in hex of a file or of all files of a folder; large ones are sampled."""
    file_paths = sorted(file_path for file_path in path.rglob("*") if file_path.is_file()) if path.is_dir() else [path]
    # Of a large folder, the content of evenly spaced files and the size of all files.
    stride = max(1, path_size(path) // _HASHED)
    lines = []
    for file_number, file_path in enumerate(file_paths):
        status = file_path.stat()
        is_read = file_number % stride == 0
        content = _digest(file_path, status.st_size, status.st_mtime_ns) if is_read else status.st_size
        lines.append(f"{file_path.relative_to(path)} {content}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@lru_cache(maxsize=1024)
def _digest(file_path: Path, num_bytes: int, _changed: int) -> str:
    """Return the SHA-256 of a file, or of evenly spaced samples of a large one; each process reads a file once."""
    digest = hashlib.sha256(str(num_bytes).encode())
    with file_path.open("rb") as file:
        if num_bytes <= _HASHED:
            digest.update(file.read())
        else:
            sample_bytes = 1 << 20
            stride = max(num_bytes // (_HASHED // sample_bytes), sample_bytes)
            for sample_start in (*range(0, num_bytes, stride), num_bytes - sample_bytes):
                file.seek(sample_start)
                digest.update(file.read(sample_bytes))
    return digest.hexdigest()
