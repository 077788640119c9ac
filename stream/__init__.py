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
    from stream.base.random_numbers import row_random as row_random
    from stream.frameworks.grain import SampleSource as SampleSource
    from stream.frameworks.grain import samples as samples
    from stream.label.attach import add_labels as add_labels
    from stream.label.attach import list_labels as list_labels
    from stream.label.attach import remove_labels as remove_labels
    from stream.loader.comparison import digest as digest
    from stream.loader.comparison import shared_episodes as shared_episodes
    from stream.loader.iterator import LoaderIterator as LoaderIterator
    from stream.loader.loader import Loader as Loader
    from stream.loader.opening import load_loader as load_loader
    from stream.loader.opening import make_loader as make_loader
    from stream.loader.run_config import Workers as Workers
    from stream.order.reference import EpisodeRef as EpisodeRef
    from stream.order.reference import SampleRef as SampleRef
    from stream.sample.augment import Augment as Augment
    from stream.sample.frames import Frames as Frames
    from stream.sample.select import Select as Select
    from stream.sample.vector import Vector as Vector
    from stream.statistics.load import load_normalize as load_normalize
    from stream.statistics.normalize import Normalize as Normalize


# Imported when first used: a worker needs none of these modules, and Grain is slow to import.
_MODULES = {
    "loader.comparison": ("digest", "shared_episodes"),
    "base.errors": ("ArgumentError", "RecordError", "RingError", "StateError", "StreamError", "WorkerError"),
    "frameworks.grain": ("SampleSource", "samples"),
    "label.attach": ("add_labels", "list_labels", "remove_labels"),
    "loader.iterator": ("LoaderIterator",),
    "loader.loader": ("Loader",),
    "loader.opening": ("load_loader", "make_loader"),
    "loader.run_config": ("Workers",),
    "sample.augment": ("Augment",),
    "sample.frames": ("Frames",),
    "base.random_numbers": ("row_random",),
    "order.reference": ("EpisodeRef", "SampleRef"),
    "sample.select": ("Select",),
    "sample.vector": ("Vector",),
    "statistics.load": ("load_normalize",),
    "statistics.normalize": ("Normalize",),
}
_MODULE_BY_NAME = {name: f"stream.{module}" for module, exported_names in _MODULES.items() for name in exported_names}

__all__ = sorted(_MODULE_BY_NAME)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'stream' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
