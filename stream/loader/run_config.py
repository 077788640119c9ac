"""Settings of a run that change neither the samples of a loader nor their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, get_args

from stream.base.arguments import check_choice, check_whole_number
from stream.base.errors import ArgumentError
from stream.base.machine import usable_processors
from stream.base.value_object import ValueObject, known_fields
from stream.sample.frames import Decode

MAX_BATCH_SIZE = 1 << 20
"""Limit on rows: the plan of a mistyped number would fill the memory before the frames do."""
_MINIMUMS = {"batch_size": 1, "world_size": 1, "rank": 0, "num_steps": 0}
"""Least value of each whole number."""
_MAX_AUTO_WORKERS = 64
"""Most workers of ``auto``: each has a batch in memory, and one trainer cannot use the batches of more."""
_MAY_BE_NONE = ("num_steps", "rank", "world_size")


@known_fields
@dataclass(frozen=True, repr=False)
class Workers(ValueObject):
    """Worker processes of a loader.

    Args:
        count: Processes, each of which makes complete batches; 0 makes them in a thread of this process. ``auto``
            takes this rank's share of the processors available to the ranks of this machine, less one for the trainer:
            at least 1, at most 64.
        threads: Threads of each worker, by default 1. Without workers the default is 2, or 1 on one processor.
        prefetch: Batches that are ready or in progress, in addition to one for each worker.

    Raises:
        ArgumentError: A value is wrong.

    >>> Workers(4, prefetch=3)
    Workers(4, prefetch=3)
    """

    positional: ClassVar[str] = "count"

    count: int | Literal["auto"] = 0
    _: KW_ONLY
    threads: int | None = None
    prefetch: int = 2

    def __post_init__(self) -> None:
        count: Any = self.count
        if count == "auto":
            # One processor is the trainer's.
            count = max(1, min(usable_processors() - 1, _MAX_AUTO_WORKERS))
        elif isinstance(count, str):
            raise ArgumentError(f"num_workers={count!r:.100}; expected a whole number >= 0, or 'auto'")
        self._set(count=check_whole_number("num_workers", count, least=0))
        self._set(prefetch=check_whole_number("prefetch", self.prefetch, least=1))
        if self.threads is not None:
            self._set(threads=check_whole_number("threads", self.threads, least=1))

    @property
    def num_processes(self) -> int:
        """Worker processes, also for ``auto``."""
        return int(self.count)

    @property
    def num_threads(self) -> int:
        """Threads of each worker, or of this process without workers."""
        return self.threads or (1 if self.count else min(2, usable_processors()))


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of a run, as ``make_loader`` documents them.

    Raises:
        ArgumentError: A setting is wrong, or settings do not fit together.
    """

    batch_size: int
    workers: Workers = Workers()
    rank: int | None = None
    world_size: int | None = None
    transforms: Sequence[Any] = ()
    on_error: Literal["raise", "replace"] = "raise"
    num_steps: int | None = None
    decode: Decode = "host"

    def __post_init__(self) -> None:
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
        check_choice("decode", self.decode, get_args(Decode))
        if not isinstance(self.transforms, list | tuple):
            raise ArgumentError(
                f"transforms={self.transforms!r:.100}; expected a list of grain.transforms.Map or RandomMap"
            )
        for transform in self.transforms:
            if isinstance(transform, type) or not any(
                hasattr(transform, name) for name in ("map", "random_map", "bind")
            ):
                raise ArgumentError(f"transform {transform!r:.100}; expected a Map or RandomMap, not a class")
        object.__setattr__(self, "transforms", tuple(self.transforms))

    @property
    def ranks(self) -> tuple[int, int]:
        """Rank and world size; 0 of 1 if none were given."""
        return self.rank or 0, self.world_size or 1

    @property
    def random_ranks(self) -> int | None:
        """Number of ranks if the batches depend on it, as with a ``RandomMap``; else None."""
        return self.ranks[1] if any(hasattr(transform, "random_map") for transform in self.transforms) else None
