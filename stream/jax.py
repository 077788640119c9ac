"""JAX: batches on devices and across processes, and normalisation there."""

from stream.frameworks.jax import make_loader, normalize, to_devices

__all__ = ["make_loader", "normalize", "to_devices"]
