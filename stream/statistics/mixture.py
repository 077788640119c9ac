"""The part of an open mixture that statistics need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stream.batch.spec import BatchSpec

if TYPE_CHECKING:
    from stream.format.catalog import Dataset
    from stream.order.sample_index import SampleIndex


class Mixture(Protocol):
    """An open mixture, as a loader has it in ``data``."""

    names: tuple[str, ...]
    datasets: tuple[Dataset, ...]
    sample_index: SampleIndex
    phase_weights: list[list[float]]

    @property
    def spec(self) -> BatchSpec:
        """Content of a batch."""
        ...
