"""What ranks have to tell, from a loader of one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import stream
from stream.loader.loader import Loader

BATCH_SIZE = 8
MIXTURE = "oxe29"


def make_task(root: Path, **more: Any) -> dict[str, Any]:
    return {"root": str(root), "mixture": MIXTURE, "batch_size": BATCH_SIZE, "steps": 3, **more}


def make_loader(root: Path, *, rank: int = 0, world_size: int = 1) -> Loader:
    return stream.make_loader(root, MIXTURE, batch_size=BATCH_SIZE, rank=rank, world_size=world_size)


def assert_reads_its_rows(message: Mapping[str, Any], root: Path, *, rank: int, world_size: int) -> None:
    """A rank had its rows of steps 0 to 2, and opened no record file but theirs and those of rows fetched ahead."""
    loader = make_loader(root, rank=rank, world_size=world_size)
    rows = BATCH_SIZE // world_size
    assert message["samples"] == [BATCH_SIZE * step + rank * rows + row for step in range(3) for row in range(rows)]
    shards = [{f"{row.dataset}/{row.shard}" for row in loader.describe(step)} for step in range(8)]
    assert set().union(*shards[:3]) <= set(message["opened"]) <= set().union(*shards)


def bytes_of(root: Path, steps: int) -> int:
    """Bytes of the records of the first steps, of all rows."""
    loader = make_loader(root)
    for _ in zip(range(steps), loader, strict=False):
        pass
    return int(loader.stats()["bytes"])
