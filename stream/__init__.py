"""Deterministic, random-access mixtures of converted datasets.

>>> import stream
>>> loader = stream.make_loader("data/oxe", "oxe29", batch_size=64)  # doctest: +SKIP
>>> batch = loader.batch_at(51_234)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream.base.errors import ArgumentError as ArgumentError
    from stream.base.errors import RecordError as RecordError
    from stream.base.errors import RingError as RingError
    from stream.base.errors import StateError as StateError
    from stream.base.errors import StreamError as StreamError
    from stream.base.errors import WorkerError as WorkerError
    from stream.frameworks.grain import PairSource as PairSource
    from stream.frameworks.grain import pairs as pairs
    from stream.label.attach import add_labels as add_labels
    from stream.label.attach import list_labels as list_labels
    from stream.label.attach import remove_labels as remove_labels
    from stream.loader.digest import digest as digest
    from stream.loader.iterator import LoaderIterator as LoaderIterator
    from stream.loader.loader import Loader as Loader
    from stream.loader.loader import load_loader as load_loader
    from stream.loader.loader import make_loader as make_loader
    from stream.loader.shared import shared_episodes as shared_episodes
    from stream.order.random_numbers import row_random as row_random
    from stream.order.reference import EpisodeRef as EpisodeRef
    from stream.order.reference import SampleRef as SampleRef
    from stream.statistics.normalize import Normalize as Normalize
    from stream.statistics.normalize import load_normalize as load_normalize


# Imported when first used: a worker needs none of these modules, and Grain is slow to import.
_MODULES = {
    "loader.digest": ("digest",),
    "base.errors": ("ArgumentError", "RecordError", "RingError", "StateError", "StreamError", "WorkerError"),
    "frameworks.grain": ("PairSource", "pairs"),
    "label.attach": ("add_labels", "list_labels", "remove_labels"),
    "loader.iterator": ("LoaderIterator",),
    "loader.loader": ("Loader", "load_loader", "make_loader"),
    "loader.shared": ("shared_episodes",),
    "order.random_numbers": ("row_random",),
    "order.reference": ("EpisodeRef", "SampleRef"),
    "statistics.normalize": ("Normalize", "load_normalize"),
}
_PLACES = {name: f"stream.{module}" for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'stream' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
