"""Episodes that two loaders have in common: a leak from training into validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stream.order.reference import EpisodeRef

if TYPE_CHECKING:
    from stream.format.index import SplitIndex
    from stream.loader.loader import Loader
    from stream.loader.open_mixture import OpenMixture

_Split = tuple[str, str, str]
"""Dataset, version and split."""


def shared_episodes(first: Loader, second: Loader) -> list[EpisodeRef]:
    """Return the episodes of which both loaders draw samples, whatever their members are called.

    Args:
        first, second: Loaders, for example of training and validation. Two versions of a dataset are two datasets.

    Returns:
        An entry for each episode, by dataset, version, split and number; empty if nothing leaks.
    """
    here, there = _episodes(first.data), _episodes(second.data)
    found = []
    for key in sorted(here.keys() & there.keys()):
        index, numbers = here[key]
        both = np.intersect1d(numbers, there[key][1]).astype(np.int64)
        ids = index.episodes.take_texts("episode_id", both)
        found += [EpisodeRef(*key, number, name) for number, name in zip(both.tolist(), ids, strict=True)]
    return found


def _episodes(data: OpenMixture) -> dict[_Split, tuple[SplitIndex, np.ndarray]]:
    """Return the index and the numbers of the episodes with samples, by split."""
    found: dict[_Split, tuple[SplitIndex, np.ndarray]] = {}
    for index, numbers in zip(data.views.splits, data.views.episodes, strict=True):
        dataset = data.datasets[index.member]
        key = dataset.manifest.dataset, dataset.version, index.split
        before = found[key][1] if key in found else numbers[:0]
        found[key] = index, np.union1d(before, numbers)
    return found
