"""Ways to damage a conversion, and what verifying says about it in one line each."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convert.verify import Report, verify_root

DATASET = "bridge_dataset"
STEM = "train-00001-of-00002"
OTHER = "train-00000-of-00002"


def verify(root: Path, *, deep: bool = True) -> Report:
    return verify_root(root, deep=deep, jobs=1)


def problems(report: Report) -> str:
    return "\n".join(f"{problem.file}: {problem.problem}" for problem in report.problems)


def edit_manifest(folder: Path, edit: Callable[[Any], object]) -> None:
    path = folder / "dataset.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    # Signed anew, so that the checks behind the checksum are reached.
    manifest["checksum"] = "0" * 64
    content = json.dumps(manifest).encode()
    path.write_bytes(content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode()))


def entry_of(manifest: Any, stem: str = STEM) -> Any:
    (entry,) = [shard for shard in manifest["splits"]["train"]["shards"] if shard["name"] == stem]
    return entry


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def scramble(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_loose_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")
