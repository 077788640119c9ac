"""A normalisation that is chosen before the data are open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stream.base.errors import ArgumentError
from stream.statistics.load import load_normalize
from stream.statistics.normalize import Normalize


@dataclass(frozen=True)
class DeferredNormalize:
    """A normalisation among the transforms of a loader, which ``bind`` makes from the loader's data.

    Attributes:
        settings: Arguments of ``Normalize``.
        path: File of a trainer whose statistics replace those of the data.
    """

    settings: Mapping[str, Any]
    path: str | Path | None = None

    @property
    def is_computed(self) -> bool:
        """True if the statistics are those of the data, not of a file."""
        return self.path is None

    def bind(self, data: Any) -> Normalize:
        """Return the normalisation for the data of a loader; raises ArgumentError as ``Normalize`` does."""
        if self.path is not None:
            return load_normalize(self.path, data, format=self.settings["method"])
        return Normalize(data, **self.settings)


def choose_normalize(normalize: Any, settings: Mapping[str, Any]) -> tuple[DeferredNormalize | Normalize, ...]:
    """Return the normalisation of a trainer as its transforms, none for raw values.

    Args:
        normalize: True for the statistics of the data, False for raw values; a file of the trainer; or a normalisation.
        settings: Arguments of ``Normalize`` that the trainer sets.

    Raises:
        ArgumentError: ``normalize`` is something else.
    """
    if isinstance(normalize, Normalize):
        return (normalize,)
    if isinstance(normalize, str | Path) and Path(normalize).is_file():
        return (DeferredNormalize(settings, normalize),)
    if isinstance(normalize, bool | int | np.bool_) and normalize in (0, 1):
        return (DeferredNormalize(settings),) if normalize else ()
    raise ArgumentError(
        f"normalize={normalize!r:.100}; expected True for the statistics of the data, False for raw values, a file "
        "of the trainer, or a stream.Normalize"
    )
