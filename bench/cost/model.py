"""What converting datasets takes: plain arithmetic on sizes, rates that were measured, and prices that are assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOURS_A_MONTH = 730


@dataclass(frozen=True, kw_only=True)
class DatasetWork:
    """A dataset to convert. source_bytes, shards, episodes: as published. codec: of the frames that are stored.

    The rest is measured on a sample: seconds of one core for each step and each shard, bytes written for each pair, and
    ``bytes_per_step`` of the sample's source. published_steps: None where nobody publishes them.
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
        """Steps of all episodes; where they are not published, bytes / bytes per step of the sample."""
        return self.published_steps or round(self.source_bytes / self.bytes_per_step)

    @property
    def pairs(self) -> int:
        """Pairs, if no episode is shorter than the offset."""
        return max(0, self.steps - self.episodes * self.offset)

    @property
    def core_seconds(self) -> float:
        """Seconds that one core takes."""
        return self.steps * self.seconds_per_step + self.shards * self.seconds_per_shard

    @property
    def shard_seconds(self) -> float:
        """Seconds that a core takes for a shard of mean size: no conversion ends sooner."""
        return self.core_seconds / self.shards

    @property
    def bytes_out(self) -> float:
        """Bytes written."""
        return self.pairs * self.bytes_out_per_pair


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where to convert. read: bytes/s of source that it reads in all. busy: part of the time that its cores convert.
    memory, disk: GB a worker, where they are paid."""

    name: str
    workers: int
    cores_per_worker: int
    read: float
    busy: float
    memory: float = 0.0
    disk: float = 0.0

    @property
    def cores(self) -> int:
        """Cores in all."""
        return self.workers * self.cores_per_worker


@dataclass(frozen=True, kw_only=True)
class Prices:
    """In dollars: of a core, a GB of memory and a GB of disk for an hour, a GB stored for a month, a GB taken out."""

    core_hour: float
    memory_hour: float
    disk_hour: float
    storage_month: float
    egress: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one place takes: hours of computing, of reading, and in all (the longest of these and of one shard), dollars
    of its machines."""

    place: str
    cores: int
    compute_hours: float
    read_hours: float
    hours: float
    core_hours: float
    dollars: float


def cost(works: Sequence[DatasetWork], place: Place, prices: Prices) -> Cost:
    """Return what converting all datasets takes at a place whose machines cost ``prices``.

    Reading goes on beside computing. ``place.busy`` is the part of the time that its cores convert: the rest is for
    starting, waiting for files, and for the last shards, when some have nothing left to do.

    >>> work = DatasetWork(name="a", codec="png", source_bytes=10**12, shards=100, episodes=1000, offset=5,
    ...     published_steps=360_000, seconds_per_step=0.1, seconds_per_shard=0.0, bytes_out_per_pair=1.0,
    ...     bytes_per_step=1.0)
    >>> place = Place(name="here", workers=2, cores_per_worker=4, read=1e9, busy=1.0, memory=16)
    >>> free = Prices(core_hour=0, memory_hour=0, disk_hour=0, storage_month=0, egress=0)
    >>> round(cost([work], place, free).hours, 2), round(cost([work], place, free).read_hours, 2)
    (1.25, 0.28)
    """
    seconds = sum(work.core_seconds for work in works)
    compute = seconds / 3600 / place.cores / place.busy
    read = sum(work.source_bytes for work in works) / place.read / 3600
    longest = max((work.shard_seconds for work in works), default=0.0) / 3600
    hours = max(compute, read, longest)
    worker_hour = (
        place.cores_per_worker * prices.core_hour + place.memory * prices.memory_hour + place.disk * prices.disk_hour
    )
    return Cost(
        place=place.name,
        cores=place.cores,
        compute_hours=compute,
        read_hours=read,
        hours=hours,
        core_hours=seconds / 3600,
        dollars=hours * place.workers * worker_hour,
    )
