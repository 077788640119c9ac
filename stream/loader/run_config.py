"""Settings of a run that change neither the samples of a loader nor their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.base.machine import usable_processors
from stream.batch.spec import DECODE, Decode

MAX_BATCH_SIZE = 1 << 20
"""Limit on rows: the plan of a mistyped number would fill the memory before the frames do."""
_MINIMUMS = {"batch_size": 1, "world_size": 1, "rank": 0, "num_workers": 0, "threads": 1, "prefetch": 1, "num_steps": 0}
"""Least value of each whole number."""
_MAX_AUTO_WORKERS = 64
"""Most workers of ``auto``: each has a batch in memory, and one trainer cannot use the batches of more."""
_MAY_BE_NONE = ("threads", "num_steps", "rank", "world_size")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of a run, as ``make_loader`` documents them. ``num_workers="auto"`` becomes a number.

    Raises:
        ArgumentError: A setting is wrong, or settings do not fit together.
    """

    batch_size: int
    num_workers: int | Literal["auto"] = 0
    threads: int | None = None
    prefetch: int = 2
    rank: int | None = None
    world_size: int | None = None
    transforms: Sequence[Any] = ()
    on_error: Literal["raise", "replace"] = "raise"
    num_steps: int | None = None
    decode: Decode = "host"

    def __post_init__(self) -> None:
        num_workers: Any = self.num_workers
        if num_workers == "auto":
            # One processor is the trainer's.
            object.__setattr__(self, "num_workers", max(1, min(usable_processors() - 1, _MAX_AUTO_WORKERS)))
        elif isinstance(num_workers, str):
            raise ArgumentError(f"num_workers={num_workers!r:.100}; expected a whole number >= 0, or 'auto'")
        for field_name, minimum in _MINIMUMS.items():
            setting: Any = getattr(self, field_name)
            if setting is not None or field_name not in _MAY_BE_NONE:
                object.__setattr__(self, field_name, check_whole_number(field_name, setting, least=minimum))
        if self.batch_size > MAX_BATCH_SIZE:
            raise ArgumentError(f"batch_size={self.batch_size}; expected at most {MAX_BATCH_SIZE:,}")
        if (self.rank is None) != (self.world_size is None):
            argument = f"rank={self.rank}" if self.world_size is None else f"world_size={self.world_size}"
            raise ArgumentError(f"only {argument}; give rank and world_size together, or neither")
        rank, world_size = self.ranks
        if self.batch_size % world_size:
            smaller = self.batch_size // world_size * world_size
            choices = " or ".join(str(batch_size) for batch_size in (smaller, smaller + world_size) if batch_size)
            raise ArgumentError(
                f"batch_size={self.batch_size} is not divisible by world_size={world_size}; batch_size counts the "
                f"rows of all ranks together, take {choices}"
            )
        if rank >= world_size:
            raise ArgumentError(f"rank={rank} of world_size={world_size}; expected 0 to {world_size - 1}")
        if self.decode not in DECODE:
            raise ArgumentError(f"decode={self.decode!r}; expected 'host' or 'device'")
        if not isinstance(self.transforms, list | tuple):
            raise ArgumentError(
                f"transforms={self.transforms!r:.100}; expected a list of grain.transforms.Map or RandomMap"
            )
        for transform in self.transforms:
            if isinstance(transform, type) or not (hasattr(transform, "map") or hasattr(transform, "random_map")):
                raise ArgumentError(f"transform {transform!r:.100}; expected a Map or RandomMap, not a class")
        object.__setattr__(self, "transforms", tuple(self.transforms))

    @property
    def ranks(self) -> tuple[int, int]:
        """Rank and world size; 0 of 1 if none were given."""
        return self.rank or 0, self.world_size or 1

    @property
    def worker_count(self) -> int:
        """Worker processes, also for ``auto``."""
        return int(self.num_workers)

    @property
    def thread_count(self) -> int:
        """Threads of each worker, or of this process without workers."""
        return self.threads or (1 if self.num_workers else min(2, usable_processors()))

    @property
    def random_ranks(self) -> int | None:
        """Number of ranks if the batches depend on it, as with a ``RandomMap``; else None."""
        return self.ranks[1] if any(hasattr(transform, "random_map") for transform in self.transforms) else None
