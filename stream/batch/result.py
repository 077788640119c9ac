"""A batch that is being made: its content so far, the work, and the rows that cannot be read."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from stream.base.errors import RecordError
from stream.base.machine import limit_of
from stream.batch.frames import Frames
from stream.batch.spec import Batch, BatchSpec
from stream.order.rows import Rows
from stream.storage.remote import RemoteError


@dataclass
class Timings:
    """Work of making batches, added over threads.

    Attributes:
        read_s: Seconds of reading records.
        decode_s: Seconds of decoding and augmenting frames.
        metadata_s: Seconds of looking up the index.
        bytes: Bytes of records.
        requests: Requests that were sent to an object store, if the root is read in place; requests for failed, late
            and damaged records included.
        remote_bytes: Bytes of the answers.
    """

    read_s: float = 0.0
    decode_s: float = 0.0
    metadata_s: float = 0.0
    bytes: int = 0
    requests: int = 0
    remote_bytes: int = 0

    def add(self, timings: Timings) -> None:
        """Add the work of another thread or attempt."""
        for name, amount in vars(timings).items():
            setattr(self, name, getattr(self, name) + amount)


@dataclass
class BatchResult:
    """A batch, the work of making it, and the rows that failed.

    Attributes:
        rows: Rows of the batch, after replacements.
        batch: Arrays and texts by key, empty until they are complete.
        failed: Rows that cannot be read, and their errors.
        work: Work of all attempts.
        replaced: Errors of the rows that were replaced.
        attempts: Number of times that rows were replaced.
    """

    rows: Rows
    batch: Batch = field(default_factory=dict)
    failed: list[tuple[int, RecordError]] = field(default_factory=list)
    work: Timings = field(default_factory=Timings)
    replaced: list[RecordError] = field(default_factory=list)
    attempts: int = 0


@dataclass
class PendingBatch:
    """A batch whose rows were looked up, and whose records are being read if the root is read in place.

    Attributes:
        result: Result so far.
        frames: Records of the batch.
        texts: Texts by key.
        read_rows: First row of each read.
        errors: Errors of the reads, None if there are no reads.
    """

    result: BatchResult
    frames: Frames
    texts: dict[str, list[str]]
    read_rows: list[int] = field(default_factory=list)
    errors: Future[list[Exception | None]] | None = None


def add_failure(result: BatchResult, row: int, error: Exception, *, spec: BatchSpec) -> None:
    """Add a row that cannot be read; raise the error if the record is not damaged, so that none replaces it."""
    if limit := limit_of(error):
        raise limit
    failure = _record_error(spec, result.rows, row, error)
    if isinstance(error, RemoteError):
        shard = f"dataset {failure.dataset}, split {failure.split}, shard {failure.shard}"
        reason = f"{shard}, record {failure.record}: {error}; continue from the same state when the store answers"
        raise RemoteError(reason, refused=error.refused)
    result.failed.append((row, failure))


def _record_error(spec: BatchSpec, rows: Rows, row: int, error: Exception) -> RecordError:
    split_index, stored_record = spec.splits[int(rows.split[row])], int(rows.record[row])
    first_records = split_index.shards.first_records
    episode = record_number = -1
    try:
        if spec.layouts[split_index.member] == "pairs":
            episode = int(split_index.records.array("episode")[stored_record])
        else:
            episode, step = (
                int(split_index.steps.array("episode")[stored_record]),
                int(split_index.steps.array("step")[stored_record]),
            )
            stored_record = int(split_index.episodes.array("first_record")[episode]) + step
        record_number = split_index.record_number(stored_record)
    except (OSError, IndexError):
        stored_record = min(stored_record, int(first_records[-1]) - 1)
    # The shard comes from the manifest, as the index may be damaged.
    shard_number = int(
        np.clip(np.searchsorted(first_records, stored_record, side="right") - 1, 0, len(first_records) - 2)
    )
    return RecordError(
        str(error),
        dataset=split_index.dataset,
        split=split_index.split,
        shard=split_index.shards.stem(shard_number),
        record=stored_record - int(first_records[shard_number]) if record_number < 0 else record_number,
        episode=episode,
        sample=int(rows.sample[row]),
    )
