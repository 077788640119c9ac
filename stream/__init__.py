"""Deterministic, random-access mixtures of converted datasets.

>>> import stream
>>> loader = stream.make_loader("data/oxe", "oxe29", batch_size=64)  # doctest: +SKIP
>>> batch = loader.batch_at(51_234)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream.frameworks.grain import PairSource, pairs
    from stream.loader.digest import digest
    from stream.loader.iterator import LoaderIterator
    from stream.loader.loader import Loader, load_loader, make_loader
    from stream.loader.normalize import Normalize
    from stream.order.random_numbers import row_random
    from stream.order.reference import SampleRef
    from stream.storage.errors import ArgumentError, RecordError, RingError, StateError, StreamError, WorkerError


# Imported when first used: a worker needs none of these modules, and Grain is slow to import.
_MODULES = {
    "loader.digest": ("digest",),
    "storage.errors": ("ArgumentError", "RecordError", "RingError", "StateError", "StreamError", "WorkerError"),
    "frameworks.grain": ("PairSource", "pairs"),
    "loader.iterator": ("LoaderIterator",),
    "loader.loader": ("Loader", "load_loader", "make_loader"),
    "loader.normalize": ("Normalize",),
    "order.random_numbers": ("row_random",),
    "order.reference": ("SampleRef",),
}
_PLACES = {name: f"stream.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "ArgumentError",
    "Loader",
    "LoaderIterator",
    "Normalize",
    "PairSource",
    "RecordError",
    "RingError",
    "SampleRef",
    "StateError",
    "StreamError",
    "WorkerError",
    "digest",
    "load_loader",
    "make_loader",
    "pairs",
    "row_random",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'stream' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
