"""Chunks of actions: their tails, and the steps that have a complete one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stream.format.spaces import Space
from stream.storage.errors import ArgumentError

if TYPE_CHECKING:
    from stream.loader.mixed import MixedData


def repeat_edges(values: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return windows whose steps beyond the episode repeat its nearest step.

    Args:
        values: float32 [b, W, D], 0 where the mask is False.
        mask: bool [b, W, D]. A step without any value is beyond the episode.

    Returns:
        float32 [b, W, D]; bool [b, W], True for a repeated step. A window without any step stays 0.

    >>> values, mask = np.array([[[0.0], [3.0], [4.0], [0.0]]]), np.array([[[False], [True], [True], [False]]])
    >>> [part[0].ravel().tolist() for part in repeat_edges(values, mask)]
    [[3.0, 3.0, 4.0, 4.0], [True, False, False, True]]
    """
    real = np.asarray(mask.any(axis=2))
    width = real.shape[1]
    first, last = real.argmax(axis=1), width - 1 - real[:, ::-1].argmax(axis=1)
    steps = np.clip(np.arange(width), first[:, None], last[:, None])
    return np.take_along_axis(values, steps[:, :, None], axis=1), ~real


def take_steps(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return steps of windows by their numbers: [b, W, ...] and int64 [b, ...] give [b, ..., ...].

    >>> take_steps(np.array([[1, 2, 3], [4, 5, 6]]), np.array([[0, 0], [1, 2]])).tolist()
    [[1, 1], [5, 6]]
    """
    rows = np.arange(len(values)).reshape(-1, *[1] * (places.ndim - 1))
    taken: np.ndarray = values[rows, places]
    return taken


def pad_dims(values: np.ndarray, size: int) -> np.ndarray:
    """Return vectors with zeros up to a count of dimensions, float32 [..., size]."""
    out = np.zeros((*values.shape[:-1], size), values.dtype)
    out[..., : values.shape[-1]] = values
    return out


def check_dims(data: MixedData, size: int) -> None:
    """Raise ArgumentError if a vector of the mixture has more dimensions than a model takes."""
    for key in ("action", "state"):
        for name, vector in zip(data.names, data.spec.vectors(key), strict=True):
            if vector.size > size:
                raise ArgumentError(
                    f"{key} of {name} has {vector.size} dimensions, the model takes {size}; raise the model's "
                    f"count, or choose dimensions with {key}_columns or {key}_space"
                )


def dropped_steps(data: MixedData) -> np.ndarray:
    """Return how many steps at either end of an episode have no action in the space of the loader, int64 [M, 2]."""
    space = data.options.action_space
    found = [dataset.fields.spaces.get(space, Space()) if space else Space() for dataset in data.datasets]
    return np.array([(each.drop_first, each.drop_last) for each in found], np.int64)


def whole_chunks(data: MixedData, *, after: int = 0, drop_last: int = 0) -> dict[str, dict[str, list[list[int]]]]:
    """Return the steps t with an action at each of t to t + after, as ``keep_ranges`` of ``make_loader``.

    Members all of whose steps qualify are left out, so ``after=0`` names the few datasets whose episodes have steps
    without an action at their ends. The result has an entry for each episode of the other members.

    Args:
        data: Mixture in the space of the loader.
        after: Count of the actions after t.
        drop_last: Count of further steps to leave out at the end of each episode.

    Raises:
        ArgumentError: A dataset has no episode that is long enough.
    """
    found: dict[str, dict[str, list[list[int]]]] = {}
    dropped = dropped_steps(data)
    for split in data.views.splits:
        first, last = dropped[split.member].tolist()
        if not (first or last or after or drop_last):
            continue
        stops = (split.episodes.array("num_steps").astype(np.int64) - last - after - drop_last).tolist()
        names = split.episodes.arrow().column("episode_id").to_pylist()
        kept = found.setdefault(data.names[split.member], {})
        kept |= {name: [[first, stop]] for name, stop in zip(names, stops, strict=True) if stop > first}
    for name, kept in found.items():
        if not kept:
            raise ArgumentError(f"dataset {name}: no episode has {after + 1} actions; take a shorter chunk")
    return found
