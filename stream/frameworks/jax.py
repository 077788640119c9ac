"""JAX: batches on devices and across processes, and normalisation on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from stream.base.errors import ArgumentError
from stream.base.extras import imports_of
from stream.batch.spec import Batch, map_values
from stream.frameworks.device_augment import choose_augmentation, iterate
from stream.frameworks.jax_augment import JaxAugmenter
from stream.frameworks.prefetch import Carrier, PrefetchIterator, begin, is_numeric
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader
from stream.statistics.affine import Affine, apply_tables

with imports_of("jax", by="stream.jax"):
    import jax
    import jax.numpy as jnp


def ranks(sharding: jax.sharding.Sharding | None = None) -> dict[str, Any]:
    """Return this process's rank and the number of ranks, for ``make_loader(..., **ranks(sharding))``.

    The sharding decides which rows a process needs: processes that hold the same rows, as along a model axis, have one
    rank. Without a sharding, and with a sharding over only the devices of this process, each process is a rank.

    Args:
        sharding: Sharding for ``to_devices``.

    Returns:
        ``rank`` and ``world_size``.

    Raises:
        ArgumentError: The sharding shards other dimensions than the rows, or processes do not hold blocks of successive
            rows of one size.
    """
    if sharding is None or sharding.is_fully_addressable:
        return {"rank": jax.process_index(), "world_size": jax.process_count()}
    process_index, num_devices = jax.process_index(), len(sharding.device_set)
    # The sharding of one row for each device shows which parts of a batch each process holds.
    _check_rows(sharding, num_devices)
    parts_by_process: dict[int, set[int]] = {process_index: set()}
    for device, (device_part,) in sharding.devices_indices_map((num_devices,)).items():
        parts_by_process.setdefault(device.process_index, set()).update(range(num_devices)[device_part])  # type: ignore[attr-defined]
    block_size = len(parts_by_process[process_index]) or num_devices
    # Rank r has block r of the rows, so every process must hold one of these blocks.
    blocks = [set(range(start, start + block_size)) for start in range(0, num_devices, block_size)]
    for process, parts in parts_by_process.items():
        if parts not in blocks:
            raise ArgumentError(
                f"{sharding}: process {process} holds the parts {sorted(parts)!s:.60} of {num_devices} of the rows; "
                "expected successive parts in every process, and the same count in each; order the devices of the mesh "
                "by process"
            )
    return {"rank": min(parts_by_process[process_index]) // block_size, "world_size": num_devices // block_size}


def _check_rows(sharding: Any, num_rows: int) -> None:
    try:
        sharding.check_compatible_aval((num_rows,))
        sharding.shard_shape((num_rows,))
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise ArgumentError(
            f"batches of {num_rows} rows and {sharding}: {reason}; take a sharding of only the rows, and a batch_size "
            "that its devices divide"
        ) from None


def to_devices(
    source: Loader | LoaderIterator,
    sharding: jax.sharding.Sharding | None = None,
    *,
    prefetch: int = 1,
    augment: Literal["host", "device"] = "host",
) -> PrefetchIterator:
    """Return an iterator of batches with a ``jax.Array`` instead of each array of numbers.

    Frames, and other arrays above 1 MB, are in the memory of the ring, which is reused when their transfer has ended.
    JAX's CPU backend shares memory that is aligned to 64 bytes, and copies frames, which are not
    (``stream.batch.layout.IMAGE_SHIFT``).

    Args:
        source: A loader, or an iterator of a loader at any step. A sharding over several processes needs a loader with
            ``ranks(sharding)``.
        sharding: Sharding over the rows, for example ``NamedSharding(mesh, PartitionSpec("data"))``. By default batches
            go to the default device of this process.
        prefetch: Batches whose transfer starts before they are requested.
        augment: ``host`` augments frames in the workers; ``device`` on the device of each row, with the same amounts.
            The pictures differ by at most 2 levels. An iterator as ``source`` is then closed, as its workers augment.

    Returns:
        A Grain iterator with ``get_state``, ``set_state`` and ``close``. Shapes and dtypes are the loader's. With a
        sharding over several processes arrays are global, [batch_size, ...]. JAX turns int64 into int32 unless
        ``jax_enable_x64`` is set, but ``sample`` stays int64, as it would overflow. ``language`` stays a list of str,
        for this process's rows; do not pass it to ``jax.jit``.

    Raises:
        ArgumentError: ``source`` is something else, the devices of ``sharding`` do not divide the rows, the loader has
            other ranks than ``ranks(sharding)``, or ``decode="device"``, which JAX cannot do.
    """
    plain_loader, augmentation = choose_augmentation(source, augment)
    loader = begin(source).loader
    run_config = loader.run_config
    if run_config.decode == "device":
        raise ArgumentError('decode="device": JAX has no JPEG decoder; take decode="host"')
    if sharding is not None:
        is_global = not sharding.is_fully_addressable
        batch_rows = loader.batch_size if is_global else loader.batch_size // loader.world_size
        last_rows = (loader.data.plan.num_samples or 0) % batch_rows if loader.world_size == 1 else 0
        for num_rows in (batch_rows, last_rows or batch_rows):
            _check_rows(sharding, num_rows)
        if is_global and {"rank": run_config.rank, "world_size": run_config.world_size} != (needed := ranks(sharding)):
            raise ArgumentError(
                f"{sharding} needs {needed} in this process, and the loader has rank={run_config.rank} and "
                f"world_size={run_config.world_size}; give make_loader(..., **stream.jax.ranks(sharding))"
            )
    augmenter = None if augmentation is None else JaxAugmenter(loader.data.spec, augmentation)
    return PrefetchIterator(iterate(source, plain_loader), _OnDevices(sharding, augmenter), prefetch=prefetch)


class _OnDevices(Carrier):
    """Carrier to JAX's devices. Transfers need no waiting: JAX keeps the memory of a slot until it has read it."""

    def __init__(self, sharding: jax.sharding.Sharding | None, augmenter: JaxAugmenter | None) -> None:
        self._sharding = sharding
        self._augmenter = augmenter

    def start(self, batch: Batch) -> Batch:
        """Return the batch with its arrays on devices."""
        moved: Batch = map_values(
            lambda batch_key, value: self._put(batch_key, value) if is_numeric(value) else value, batch
        )
        return moved if self._augmenter is None else self._augmenter.apply(moved, self._augmenter.draw(batch))

    def _put(self, batch_key: str, value: np.ndarray) -> jax.Array:
        with jax.enable_x64(True) if batch_key == "sample" else contextlib.nullcontext():
            if self._sharding is not None and jax.process_count() > 1:
                return jax.make_array_from_process_local_data(self._sharding, value)
            return jax.device_put(value, self._sharding)


def normalize(tables: Mapping[str, Affine]) -> Callable[[Batch], Batch]:
    """Return a pure function that normalises batches with the tables of ``stream.Normalize``.

    Use it instead of ``make_loader(normalize=...)`` to normalise on the device, inside of ``jax.jit``.

    Args:
        tables: ``stream.Normalize(loader).tables``.

    Returns:
        A function of a batch of numpy or JAX arrays, which ``jax.jit`` may compile. Vectors stay float32.
    """
    return partial(apply_tables, tables, xp=jnp)
