"""Chunks of actions: their tails and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stream.base.errors import ArgumentError
from stream.format.names import VectorName
from stream.sample.window import nearest_steps

if TYPE_CHECKING:
    from stream.batch.spec import Batch
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
    is_step = np.asarray(mask.any(axis=2))
    return np.take_along_axis(values, nearest_steps(is_step)[:, :, None], axis=1), ~is_step


def take_steps(values: np.ndarray, step_numbers: np.ndarray) -> np.ndarray:
    """Return steps of windows by their numbers: [b, W, ...] and int64 [b, ...] give [b, ..., ...].

    >>> take_steps(np.array([[1, 2, 3], [4, 5, 6]]), np.array([[0, 0], [1, 2]])).tolist()
    [[1, 1], [5, 6]]
    """
    row_numbers = np.arange(len(values)).reshape(-1, *[1] * (step_numbers.ndim - 1))
    chosen: np.ndarray = values[row_numbers, step_numbers]
    return chosen


def delay_of(batch: Batch) -> Batch:
    """Return the keys of the delay of real-time chunking, none if batches have no delay."""
    return {key: batch[key] for key in ("action_delay", "action_prefix_mask") if key in batch}


def pad_dims(values: np.ndarray, num_dims: int) -> np.ndarray:
    """Return vectors padded with zeros to a count of dimensions, float32 [..., num_dims]."""
    padded = np.zeros((*values.shape[:-1], num_dims), values.dtype)
    padded[..., : values.shape[-1]] = values
    return padded


def check_dims(mixture: OpenMixture, num_dims: int) -> None:
    """Raise ArgumentError if a vector of the mixture has more dimensions than a model takes."""
    vector_names: tuple[VectorName, ...] = ("action", "state")
    for vector_name in vector_names:
        for dataset_name, dim_names in zip(mixture.names, mixture.spec.dim_names(vector_name), strict=True):
            if len(dim_names) > num_dims:
                raise ArgumentError(
                    f"{vector_name} of {dataset_name} has {len(dim_names)} dimensions, the model takes {num_dims}; "
                    f"raise the model's count, or choose dimensions by Vector(columns=...) or Vector(space=...)"
                )


def check_equal_dims(mixture: OpenMixture) -> None:
    """Raise ArgumentError if datasets differ in their counts of dimensions, for a model that takes no padding."""
    for vector_name in ("action", "state"):
        sizes = {
            name: vector.size for name, vector in zip(mixture.names, mixture.spec.vectors(vector_name), strict=True)
        }
        first_name = mixture.names[0]
        for dataset_name, size in sizes.items():
            if size != sizes[first_name]:
                raise ArgumentError(
                    f"{vector_name} of {dataset_name} has {size} dimensions, that of {first_name} has "
                    f"{sizes[first_name]}; action tokens take no padding: take one space for all, such as "
                    "Vector(space='eef_delta')"
                )
