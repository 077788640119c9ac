"""Deterministic, random-access mixtures of converted datasets.

>>> import stream
>>> loader = stream.make_loader("data/oxe", "oxe29", batch_size=64)  # doctest: +SKIP
>>> batch = loader.batch_at(51_234)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream.batch_digest import digest
    from stream.errors import ArgumentError, RecordError, RingError, StateError, StreamError, WorkerError
    from stream.grain_api import PairSource, pairs
    from stream.iterator import LoaderIterator
    from stream.loader import Loader, load_loader, make_loader
    from stream.normalize import Normalize
    from stream.random_numbers import row_random
    from stream.reference import SampleRef


# Imported when first used: a worker imports none of this, and Grain takes a third of a second.
_MODULES = {
    "batch_digest": ("digest",),
    "errors": ("ArgumentError", "RecordError", "RingError", "StateError", "StreamError", "WorkerError"),
    "grain_api": ("PairSource", "pairs"),
    "iterator": ("LoaderIterator",),
    "loader": ("Loader", "load_loader", "make_loader"),
    "normalize": ("Normalize",),
    "random_numbers": ("row_random",),
    "reference": ("SampleRef",),
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
