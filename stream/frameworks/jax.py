"""JAX: batches on devices and across processes, and normalisation there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stream.batch.affine import Affine, apply_tables
from stream.batch.spec import Batch
from stream.frameworks.ahead import Ahead, Carrier, begin, is_numeric
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader
from stream.loader.loader import make_loader as _make_loader
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
    """As ``stream.make_loader``, with rank and world size by default those of JAX's processes."""
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
    """Return an iterator of batches with ``jax.Array`` in place of all arrays of numbers.

    Shapes and types are those of the loader, but JAX makes int32 of int64 unless ``jax_enable_x64`` is set. ``sample``
    stays int64, as it would overflow in a long run. ``language`` stays a list of str, of this process's rows; leave it
    out of what goes into ``jax.jit``.

    A slot of the ring is used again when its transfer has ended and, on the CPU, where JAX may use the memory as it
    lies, when the array is gone. Frames are copied there too: where they can be decoded fastest
    (``stream.batch.layout.IMAGE_SHIFT``), JAX cannot use them, which makes its CPU backend, and only that, 6 % slower.

    Args:
        source: a loader, or an iterator of one, from where it is.
        sharding: over the rows, e.g. ``NamedSharding(mesh, PartitionSpec("data"))``; with several processes arrays
            are global, [batch_size, ...]. Without it, the default device of this process.
        prefetch: batches whose transfer has begun before they are asked for.

    Raises:
        ArgumentError: ``source`` is neither; or the rows cannot be divided among the devices of ``sharding``; or frames
            are to be decoded on the device, which JAX cannot.
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
    """Transfers run by themselves; JAX holds on to the memory of a slot for as long as it reads it."""

    def __init__(self, sharding: jax.sharding.Sharding | None) -> None:
        self._sharding = sharding

    def start(self, batch: Batch) -> Batch:
        """Return the batch with its arrays on devices."""
        return {key: self._put(key, value) if is_numeric(value) else value for key, value in batch.items()}

    def _put(self, key: str, value: np.ndarray) -> jax.Array:
        with jax.enable_x64(True) if key == "sample" else contextlib.nullcontext():
            if self._sharding is not None and jax.process_count() > 1:
                return jax.make_array_from_process_local_data(self._sharding, value)
            return jax.device_put(value, self._sharding)


def normalize(tables: Mapping[str, Affine]) -> Callable[[Batch], Batch]:
    """Return a pure function that normalises ``action`` and ``state`` of a batch, as ``stream.Normalize`` does.

    It takes numpy's arrays or JAX's and may be part of what ``jax.jit`` compiles.

    Args:
        tables: ``stream.Normalize(loader).tables``.
    """

    return partial(apply_tables, tables, xp=jnp)
