"""Chunks of actions: their tails and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stream.base.errors import ArgumentError

if TYPE_CHECKING:
    from stream.loader.open_mixture import OpenMixture


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


def check_dims(data: OpenMixture, size: int) -> None:
    """Raise ArgumentError if a vector of the mixture has more dimensions than a model takes."""
    for key in ("action", "state"):
        for name, vector in zip(data.names, data.spec.vectors(key), strict=True):
            if vector.size > size:
                raise ArgumentError(
                    f"{key} of {name} has {vector.size} dimensions, the model takes {size}; raise the model's "
                    f"count, or choose dimensions with {key}_columns or {key}_space"
                )
