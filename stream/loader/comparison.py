"""Comparison of runs: one hash of a batch, and the episodes that two loaders share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.order.reference import EpisodeRef

if TYPE_CHECKING:
    from stream.format.index import SplitIndex
    from stream.loader.loader import Loader
    from stream.loader.open_mixture import OpenMixture

_Split = tuple[str, str, str]
"""Dataset, version and split."""


def digest(batch: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a batch in hex: its keys in alphabetical order, dtypes, shapes and contents.

    Args:
        batch: Arrays and tensors on the CPU enter by their bytes, lists and texts by their JSON. The key of a value in
            a nested dict is ``outer/inner``.
    """
    sha256 = hashlib.sha256()
    for batch_key, value in sorted(_flat(batch), key=lambda item: item[0]):
        if isinstance(value, list | str | int | float | bool | None):
            sha256.update(json.dumps([batch_key, value], ensure_ascii=False).encode())
            continue
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:  # its bytes are addresses
            sha256.update(json.dumps([batch_key, repr(array.tolist())]).encode())
            continue
        sha256.update(json.dumps([batch_key, array.dtype.str, list(np.shape(value))]).encode())
        sha256.update(array.data if array.size else b"")
    return sha256.hexdigest()


def _flat(batch: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for batch_key, value in batch.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{batch_key}/")
        else:
            yield prefix + batch_key, value


def shared_episodes(first: Loader, second: Loader) -> list[EpisodeRef]:
    """Return the episodes from which both loaders draw samples, for any names of their members.

    Args:
        first: Loader, for example of training.
        second: Loader, for example of validation. Two versions of a dataset are two datasets.

    Returns:
        An entry for each episode, by dataset, version, split and number; empty if nothing leaks.
    """
    first_episodes, second_episodes = _episodes(first.data), _episodes(second.data)
    references = []
    for split_key in sorted(first_episodes.keys() & second_episodes.keys()):
        index, numbers = first_episodes[split_key]
        shared_numbers = np.intersect1d(numbers, second_episodes[split_key][1]).astype(np.int64)
        episode_ids = index.episodes.take_texts("episode_id", shared_numbers)
        references += [
            EpisodeRef(*split_key, number, episode_id)
            for number, episode_id in zip(shared_numbers.tolist(), episode_ids, strict=True)
        ]
    return references


def _episodes(mixture: OpenMixture) -> dict[_Split, tuple[SplitIndex, np.ndarray]]:
    """Return the index and the numbers of the episodes with samples, by split."""
    episodes: dict[_Split, tuple[SplitIndex, np.ndarray]] = {}
    for index, numbers in zip(mixture.sample_index.splits, mixture.sample_index.episodes, strict=True):
        dataset = mixture.datasets[index.member]
        split_key = dataset.manifest.dataset, dataset.version, index.split
        earlier_numbers = episodes[split_key][1] if split_key in episodes else numbers[:0]
        episodes[split_key] = index, np.union1d(earlier_numbers, numbers)
    return episodes
