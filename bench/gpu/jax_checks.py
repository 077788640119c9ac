"""Checks of JAX's way: copies, a sharding, normalisation and states."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np

from bench.gpu.checks import BATCHES, ROWS, LeftOut, check_equal, check_sums, loader_of, run_checks, weigh
from stream import Normalize
from stream.batch.spec import Batch


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Make all checks, for ``ask``."""
    checks = JaxChecks(request["folder"], request["device"])
    names = {"copies": checks.copies, "a sharding": checks.sharding, "normalisation": checks.normalisation}
    return {"checks": run_checks({f"jax: {check_name}": check for check_name, check in names.items()})}


def begin(device: str) -> Any:
    """Import JAX on a device and return it; raise LeftOut if it cannot be."""
    if importlib.util.find_spec("jax") is None:
        raise LeftOut("jax is not installed")
    # It would take most of the memory of a GPU at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    if device != "cpu" and jax.default_backend() != "gpu":
        raise LeftOut("this jaxlib has no CUDA; install jax[cuda13]")
    return jax


class JaxChecks:
    """The checks on one device; each returns a note, or raises."""

    def __init__(self, folder: str, device: str) -> None:
        self._folder, self._device = folder, device

    def copies(self) -> str:
        """Compare batches of which many are on their way while the ring is used again."""
        jax = begin(self._device)
        from stream.jax import to_devices

        loader = loader_of(self._folder, num_workers=2)
        # Products wrap around in 32 bits, on the host too.
        factors = np.arange(loader.batch_at(0)["frames"].size, dtype=np.uint32) % 251 + 1
        weigh_there = jax.jit(weigh)
        batches = to_devices(loader, prefetch=2)
        kept, sums = [], []
        for step in range(BATCHES):
            batch = next(batches)
            sums.append(weigh_there(batch["frames"], factors))
            if step % 4 == 0:
                kept.append((step, batch))
            del batch
        assert batches.get_state() == loader.state_at(BATCHES), f"the state is not of step {BATCHES}"
        batches.close()
        expected = [weigh(loader.batch_at(step)["frames"], factors).astype(np.uint32) for step in range(BATCHES)]
        check_sums(map(int, sums), map(int, expected))
        for step, batch in kept:
            check_equal(_on_host(jax, batch), loader.batch_at(step), step=step)
        return f"{BATCHES} batches bitwise those of the host, on {jax.default_backend()}"

    def sharding(self) -> str:
        """Compare batches that are spread over all devices of this process."""
        jax = begin(self._device)
        from stream.jax import to_devices

        devices = jax.local_devices()
        if ROWS % len(devices):
            raise LeftOut(f"{len(devices)} devices do not divide {ROWS} rows")
        mesh = jax.sharding.Mesh(np.array(devices), ("data",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        loader = loader_of(self._folder)
        for step, batch in zip(range(3), to_devices(loader, sharding), strict=False):
            assert batch["frames"].sharding == sharding, f"frames have {batch['frames'].sharding}"
            check_equal(_on_host(jax, batch), loader.batch_at(step), step=step)
        return f"3 batches bitwise those of the host, on {len(devices)} devices"

    def normalisation(self) -> str:
        """Compare normalised vectors, from a compiled function."""
        jax = begin(self._device)
        from stream.jax import normalize, to_devices

        loader = loader_of(self._folder)
        tables = Normalize(loader, method="q01_q99")
        batch = next(to_devices(loader))
        vectors = {key: batch[key] for key in batch if key.startswith(("action", "state", "dataset"))}
        normalised, expected = jax.jit(normalize(tables.tables))(vectors), tables.map(loader.batch_at(0))
        for key in tables.tables:
            np.testing.assert_allclose(np.asarray(normalised[key]), expected[key], rtol=1e-5, atol=1e-5, err_msg=key)
        return "within 1e-5 of the host"


def _on_host(jax: Any, batch: Batch) -> Batch:
    return {key: np.asarray(value) if isinstance(value, jax.Array) else value for key, value in batch.items()}
