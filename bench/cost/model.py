"""Arithmetic of converting datasets: published sizes, measured rates and assumed prices give hours and dollars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DatasetWork:
    """A dataset to convert: its published size, and rates measured on a sample.

    Attributes:
        name: Name in the registry.
        codec: Codec of the stored frames.
        source_bytes, shards, episodes: Published counts.
        published_steps: Published count, or None if unknown.
        seconds_per_step, seconds_per_shard: Measured seconds of one core.
        offset: Offset of a pair in steps.
        bytes_out_per_pair: Bytes written for a pair of the sample.
        bytes_per_step: Bytes of a step in the sample's source.
    """

    name: str
    codec: str
    source_bytes: int
    shards: int
    episodes: int
    published_steps: int | None
    seconds_per_step: float
    seconds_per_shard: float
    offset: int
    bytes_out_per_pair: float
    bytes_per_step: float

    @property
    def steps(self) -> int:
        """Return the steps of all episodes; if unpublished, bytes divided by the bytes of a step in the sample."""
        return self.published_steps or round(self.source_bytes / self.bytes_per_step)

    @property
    def pairs(self) -> int:
        """Return the number of pairs, if no episode is shorter than the offset."""
        return max(0, self.steps - self.episodes * self.offset)

    @property
    def core_seconds(self) -> float:
        """Return the seconds of one core."""
        return self.steps * self.seconds_per_step + self.shards * self.seconds_per_shard

    @property
    def bytes_out(self) -> float:
        """Return the bytes written."""
        return self.pairs * self.bytes_out_per_pair


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place to convert at.

    Attributes:
        name: Name in the table.
        workers, cores_per_worker: Counts.
        read: Bytes of source that the place reads in a second, over all workers.
        busy: Share of the time in which cores convert; they also start, wait for files and for the last shards.
        worker_hour: Dollars of a worker for an hour.
    """

    name: str
    workers: int
    cores_per_worker: int
    read: float
    busy: float
    worker_hour: float = 0.0


def cost(works: Sequence[DatasetWork], place: Place) -> dict[str, Any]:
    """Return the hours of computing, of reading, and in all, and the dollars of converting all datasets at a place.

    Reading and computing overlap. No conversion takes less time than a shard of mean size on one core.

    >>> work = DatasetWork(name="a", codec="png", source_bytes=10**12, shards=100, episodes=1000, offset=5,
    ...     published_steps=360_000, seconds_per_step=0.1, seconds_per_shard=0.0, bytes_out_per_pair=1.0,
    ...     bytes_per_step=1.0)
    >>> found = cost([work], Place(name="here", workers=2, cores_per_worker=4, read=1e9, busy=1.0))
    >>> round(found["hours"], 2), round(found["read_hours"], 2)
    (1.25, 0.28)
    """
    cores = place.workers * place.cores_per_worker
    core_hours = sum(work.core_seconds for work in works) / 3600
    compute = core_hours / cores / place.busy
    read = sum(work.source_bytes for work in works) / place.read / 3600
    hours = max(compute, read, *(work.core_seconds / work.shards / 3600 for work in works))
    return {
        "place": place.name,
        "cores": cores,
        "compute_hours": compute,
        "read_hours": read,
        "hours": hours,
        "core_hours": core_hours,
        "dollars": hours * place.workers * place.worker_hour,
    }
