"""The public names for JAX: batches on devices and across processes, and normalisation on them."""

from stream.frameworks.jax import normalize, ranks, to_devices

__all__ = ["normalize", "ranks", "to_devices"]
