"""JAX: batches on devices and across processes, and normalisation on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stream.batch.spec import Batch, map_values
from stream.frameworks.ahead import Ahead, Carrier, begin, is_numeric
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader
from stream.loader.loader import make_loader as _make_loader
from stream.statistics.affine import Affine, apply_tables
from stream.storage.errors import ArgumentError
from stream.storage.extras import imports_of

with imports_of("jax", by="stream.jax"):
    import jax
    import jax.numpy as jnp


def make_loader(
    root: str | Path,
    mixture: str | Path | Mapping[str, Any],
    *,
    batch_size: int,
    rank: int | None = None,
    world_size: int | None = None,
    **arguments: Any,
) -> Loader:
    """Open a converted root and mix its datasets, as ``stream.make_loader`` does.

    Args:
        root: As for ``stream.make_loader``.
        mixture: As for ``stream.make_loader``.
        batch_size: Rows of the global batch, of all processes together.
        rank: Number of this rank, by default ``jax.process_index()``.
        world_size: Number of ranks, by default ``jax.process_count()``.
        arguments: All other arguments of ``stream.make_loader``.

    Returns:
        The loader.

    Raises:
        ArgumentError: As for ``stream.make_loader``.
    """
    return _make_loader(
        root,
        mixture,
        batch_size=batch_size,
        rank=jax.process_index() if rank is None else rank,
        world_size=jax.process_count() if world_size is None else world_size,
        **arguments,
    )


def to_devices(
    source: Loader | LoaderIterator, sharding: jax.sharding.Sharding | None = None, *, prefetch: int = 1
) -> Ahead:
    """Return an iterator of batches with a ``jax.Array`` instead of each array of numbers.

    Memory of the ring is reused when its transfer has ended. JAX's CPU backend shares that memory, except for frames:
    it copies frames, as they are not aligned to 64 bytes (``stream.batch.layout.IMAGE_SHIFT``).

    Args:
        source: A loader, or an iterator of one at any step.
        sharding: Sharding over the rows, for example ``NamedSharding(mesh, PartitionSpec("data"))``. By default batches
            go to the default device of this process.
        prefetch: Batches whose transfer starts before they are asked for.

    Returns:
        A Grain iterator with ``get_state``, ``set_state`` and ``close``. Shapes and dtypes are the loader's. With a
        sharding over several processes arrays are global, [batch_size, ...]. JAX turns int64 into int32 unless
        ``jax_enable_x64`` is set, but ``sample`` stays int64, as it would overflow. ``language`` stays a list of str,
        for this process's rows; do not pass it to ``jax.jit``.

    Raises:
        ArgumentError: ``source`` is something else, the devices of ``sharding`` do not divide the rows, or the loader
            has ``decode="device"``, which JAX cannot do.
    """
    iterator = begin(source)
    if iterator.loader.running.decode == "device":
        raise ArgumentError('decode="device": JAX has no JPEG decoder; take decode="host"')
    if sharding is not None:
        loader = iterator.loader
        rows = loader.batch_size if jax.process_count() > 1 else loader.batch_size // loader.world_size
        try:
            sharding.shard_shape((rows,))
        except ValueError as error:
            raise ArgumentError(
                f"batches of {rows} rows and {sharding}: {error}; take a batch_size that the devices divide"
            ) from None
    return Ahead(iterator, _OnDevices(sharding), prefetch=prefetch)


class _OnDevices(Carrier):
    """Carrier to JAX's devices. Transfers need no waiting: JAX keeps the memory of a slot until it has read it."""

    def __init__(self, sharding: jax.sharding.Sharding | None) -> None:
        self._sharding = sharding

    def start(self, batch: Batch) -> Batch:
        """Return the batch with its arrays on devices."""
        return map_values(lambda key, value: self._put(key, value) if is_numeric(value) else value, batch)

    def _put(self, key: str, value: np.ndarray) -> jax.Array:
        with jax.enable_x64(True) if key == "sample" else contextlib.nullcontext():
            if self._sharding is not None and jax.process_count() > 1:
                return jax.make_array_from_process_local_data(self._sharding, value)
            return jax.device_put(value, self._sharding)


def normalize(tables: Mapping[str, Affine]) -> Callable[[Batch], Batch]:
    """Return a pure function that normalises ``action`` and ``state`` of a batch, as ``stream.Normalize`` does.

    Args:
        tables: ``stream.Normalize(loader).tables``.

    Returns:
        A function of a batch of numpy or JAX arrays, which ``jax.jit`` may compile. Vectors stay float32.
    """
    return partial(apply_tables, tables, xp=jnp)
