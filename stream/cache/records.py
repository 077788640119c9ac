"""The records of a shard, wherever they lie."""

from __future__ import annotations

import os

from stream.cache.quota import room_of
from stream.format.index import SplitIndex
from stream.format.record_file import RecordFile
from stream.storage.remote import Traffic


def open_records(index: SplitIndex, shard: int, *, neighbours: int = 1, traffic: Traffic | None = None) -> RecordFile:
    """Open the records of a shard.

    Args:
        index: Index of the split.
        shard: Number of the shard.
        neighbours: Records that are read together from afar.
        traffic: Counts the requests to the store and their bytes.

    Raises:
        FormatError: A local file is missing or has another size.
    """
    path, size, remote = index.record_path(shard), int(index.shards.sizes[shard]), index.remote
    if remote is None:
        return RecordFile(path, size)
    # Only here, because asyncio would be a tenth of the start of each worker.
    from stream.cache.cached_file import MOST_AT_ONCE, CachedFile

    records = int(index.shards.first_records[shard + 1] - index.shards.first_records[shard])
    span = 0 if neighbours == 1 else min(MOST_AT_ONCE, size * neighbours // max(1, records))
    url = f"{remote.url}/{os.path.basename(path)}"
    return CachedFile(path, url=url, size=size, span=span, room=room_of(remote.cache, remote.most), traffic=traffic)
