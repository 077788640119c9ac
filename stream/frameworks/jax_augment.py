"""Augmentation of frames with JAX, on each device, by the formulas of the host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from stream.base.extras import imports_of
from stream.batch.pictures.augmentation import Amounts, Augmentation
from stream.batch.pictures.colours import LUMA, Pixels, augment_pixels, source_indices
from stream.batch.spec import BatchSpec
from stream.frameworks.device_augment import MOST_PIXELS, DeviceAugmenter
from stream.sample.augment import Augment

with imports_of("jax", by="stream.jax"):
    import jax
    import jax.numpy as jnp


class JaxPixels(Pixels):
    """Operations on several frames, float32 [n, H, W, 3], in a compiled function."""

    xp = jnp
    turn = 1.0

    def clip(self, frames: jax.Array) -> jax.Array:
        """Return the frames limited to [0, 1]."""
        return frames.clip(0, 1)

    def scale(self, frames: jax.Array, factor: Any, shift: Any) -> jax.Array:
        """Return the frames times a factor plus a shift."""
        return frames * factor + shift

    def scale_about_means(self, frames: jax.Array, factor: jax.Array) -> jax.Array:
        """Return the frames with other distances from the mean of each channel."""
        return _between(frames.mean(axis=(1, 2), keepdims=True), frames, factor)

    def scale_about_grey_mean(self, frames: jax.Array, factor: jax.Array) -> jax.Array:
        """Return the frames with other distances from the mean of the grey."""
        return _between(_grey(frames.mean(axis=(1, 2), keepdims=True)), frames, factor)

    def scale_about_grey(self, frames: jax.Array, factor: jax.Array) -> jax.Array:
        """Return the frames with other distances of each pixel from its grey."""
        return _between(_grey(frames), frames, factor)

    def blend_with_blur(self, frames: jax.Array, factor: jax.Array) -> jax.Array:
        """Return the frames with other distances of each pixel from the blur."""
        height, width = frames.shape[1:3]
        if min(height, width) < 3:
            return frames
        # The centre of 3 x 3 pixels counts five times.
        total = 4 * frames[:, 1:-1, 1:-1]
        for row in range(3):
            for column in range(3):
                total = total + frames[:, row : height - 2 + row, column : width - 2 + column]
        return _between(frames.at[:, 1:-1, 1:-1].set(total / 13), frames, factor)

    def split(self, frames: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return hue in turns, saturation and value, [n, H, W, 1] each."""
        value, brightest = frames.max(axis=-1, keepdims=True), frames.argmax(axis=-1, keepdims=True)
        chroma = value - frames.min(axis=-1, keepdims=True)
        next_channel = jnp.take_along_axis(frames, (brightest + 1) % 3, axis=-1)
        last_channel = jnp.take_along_axis(frames, (brightest + 2) % 3, axis=-1)
        # Grey has no hue and black no saturation; 1 avoids their divisions by 0.
        turns = (2 * brightest).astype(jnp.float32) + (next_channel - last_channel) / jnp.where(chroma > 0, chroma, 1)
        return turns / 6, chroma / jnp.where(value > 0, value, 1), value

    def merge(self, hue: jax.Array, saturation: jax.Array, value: jax.Array) -> jax.Array:
        """Return the frames of a hue, saturation and value."""
        sector = (hue * 6 + jnp.array([5, 3, 1], jnp.float32)) % 6
        return value - value * saturation * jnp.minimum(sector, 4 - sector).clip(0, 1)

    def warp(self, frames: jax.Array, matrices: jax.Array) -> jax.Array:
        """Return the frames resampled, black beyond their edge; matrices float64 [n, 2, 3]."""
        return jax.vmap(_warped)(frames, matrices)


def _between(start: jax.Array, end: jax.Array, share: jax.Array) -> jax.Array:
    return start + share * (end - start)


def _grey(frames: jax.Array) -> jax.Array:
    """Return torchvision's grey, [n, H, W, 1]."""
    return (frames * jnp.array(LUMA, jnp.float32)).sum(axis=-1, keepdims=True)


def _warped(frame: jax.Array, matrix: jax.Array) -> jax.Array:
    """Return one frame [H, W, 3] resampled between the four pixels around each position."""
    height, width = frame.shape[:2]
    columns, rows = jnp.arange(width, dtype=matrix.dtype)[None, :], jnp.arange(height, dtype=matrix.dtype)[:, None]
    x, y = (matrix[axis, 0] * columns + matrix[axis, 1] * rows + matrix[axis, 2] for axis in (0, 1))
    left, top = jnp.floor(x), jnp.floor(y)
    moved = jnp.zeros_like(frame)
    for row, row_share in ((top, top + 1 - y), (top + 1, y - top)):
        for column, column_share in ((left, left + 1 - x), (left + 1, x - left)):
            exists = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            rows_taken, columns_taken = (
                index.clip(0, size - 1).astype(jnp.int32) for index, size in ((row, height), (column, width))
            )
            share = jnp.where(exists, row_share * column_share, 0).astype(jnp.float32)
            moved = moved + frame[rows_taken, columns_taken] * share[..., None]
    return moved


class JaxAugmenter(DeviceAugmenter):
    """Augmenter of batches on JAX's devices. Each device augments the rows that it holds, in any sharding."""

    def __init__(self, spec: BatchSpec, augmentation: Augmentation) -> None:
        super().__init__(spec, augmentation)
        self._augment_rows = jax.jit(partial(_augment_rows, augmentation.augment))
        self._move_rows = jax.jit(_move_rows)

    def augment(self, frames: jax.Array, amounts: Amounts) -> jax.Array:
        """Return augmented frames, uint8 [b, F, H, W, 3]; black frames stay black."""
        return _on_each_device(self._augment_rows, frames, amounts._asdict())

    def move_depth(self, depth: jax.Array, matrices: np.ndarray) -> jax.Array:
        """Return moved depth, uint16 [b, F, H, W], by matrices float64 [b, 2, 3]."""
        return _on_each_device(self._move_rows, depth, {"matrices": matrices})


def _on_each_device(function: Any, frames: jax.Array, amounts: Mapping[str, Any]) -> jax.Array:
    """Return the results of a function of the rows of each device, and of their amounts, in the sharding of the frames.

    Args:
        function: Compiled function of frames and amounts.
        frames: Frames of this process, or those of all processes, of which it holds successive rows.
        amounts: Arrays of the rows of this process.
    """
    shards = frames.addressable_shards
    starts = [shard.index[0].indices(len(frames))[0] for shard in shards]
    pieces = []
    for shard, start in zip(shards, starts, strict=True):
        rows = slice(start - min(starts), start - min(starts) + len(shard.data))
        local_amounts = jax.tree.map(lambda values, rows=rows: values[rows], amounts)
        # Positions are float64, as on the host.
        with jax.enable_x64(True):
            pieces.append(function(shard.data, **local_amounts))
    return jax.make_array_from_single_device_arrays(frames.shape, frames.sharding, pieces)


def _augment_rows(
    augment: Augment, frames: jax.Array, *, matrices: jax.Array | None, colours: Mapping[str, jax.Array]
) -> jax.Array:
    """Return augmented rows, uint8 [n, F, H, W, 3], a limited count of pixels at once."""
    pixels = JaxPixels()

    def augment_row(row: tuple[jax.Array, Any, Any]) -> jax.Array:
        row_frames, row_matrix, row_colours = row
        num_frames = len(row_frames)
        row_colours = {name: jnp.full((num_frames, 1, 1, 1), value, jnp.float32) for name, value in row_colours.items()}
        row_matrices = None if row_matrix is None else jnp.broadcast_to(row_matrix, (num_frames, 2, 3))
        changed = augment_pixels(augment, row_frames.astype(jnp.float32) / 255, row_matrices, row_colours, pixels)
        levels = jnp.round(changed * 255).clip(0, 255).astype(jnp.uint8)
        is_black = (row_frames == 0).all(axis=(1, 2, 3), keepdims=True)
        return jnp.where(is_black, row_frames, levels)

    num_rows = max(1, MOST_PIXELS // (frames[0].size // 3))
    return jax.lax.map(augment_row, (frames, matrices, colours), batch_size=num_rows)


def _move_rows(depth: jax.Array, *, matrices: jax.Array) -> jax.Array:
    """Return moved depth, uint16 [n, F, H, W], by the nearest source pixel; 0 beyond the edge."""
    height, width = depth.shape[2:]

    def move_row(row_depth: jax.Array, matrix: jax.Array) -> jax.Array:
        row, column, exists = source_indices(matrix, height, width, jnp)
        rows, columns = (
            index.clip(0, limit - 1).astype(jnp.int32) for index, limit in ((row, height), (column, width))
        )
        return jnp.where(exists, row_depth[:, rows, columns], 0).astype(jnp.uint16)

    return jax.vmap(move_row)(depth, matrices)
