"""The public names for JAX: batches on devices and across processes, and normalisation on them."""

from stream.frameworks.jax import make_loader, normalize, to_devices

__all__ = ["make_loader", "normalize", "to_devices"]
