"""Records of a shard, local or remote."""

from __future__ import annotations

import os

from stream.cache.quota import quota_of
from stream.format.index import SplitIndex
from stream.format.record_file import RecordFile
from stream.storage.remote import Traffic


def open_records(
    split_index: SplitIndex, shard_number: int, *, neighbours: int = 1, traffic: Traffic | None = None
) -> RecordFile:
    """Open the records of a shard; raise FormatError if a local file is missing or has another size.

    ``neighbours`` is the count of remote records that are read together. ``traffic`` counts the requests to the store.
    """
    shards, remote = split_index.shards, split_index.remote
    shard_path, shard_bytes = split_index.record_path(shard_number), int(shards.sizes[shard_number])
    if remote is None:
        return RecordFile(shard_path, shard_bytes)
    # Imported here because only remote roots need asyncio, which slows the start of each worker.
    from stream.cache.cached_file import MOST_AT_ONCE, CachedFile

    num_records = int(shards.first_records[shard_number + 1] - shards.first_records[shard_number])
    span = 0 if neighbours == 1 else min(MOST_AT_ONCE, shard_bytes * neighbours // max(1, num_records))
    url, quota = f"{remote.url}/{os.path.basename(shard_path)}", quota_of(remote.cache, remote.most)
    return CachedFile(shard_path, url=url, size=shard_bytes, span=span, quota=quota, traffic=traffic)
