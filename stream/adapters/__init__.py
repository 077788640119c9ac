"""Batches of public trainers, one module for each trainer: ``from stream.adapters import openpi``.

Each module has a ``loader`` with the arguments of ``stream.make_loader``. It returns a ``stream.Loader`` whose batches
have the trainer's keys, types, image sizes, chunk tails, masks and normalisation. The adapter is the last transform of
the loader, after the caller's ``transforms`` and the normalisation. So workers, ranks, states and ``batch_at`` work as
with any loader. Batches are numpy arrays; ``stream.torch.to_device`` makes tensors of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stream.loader.loader import Loader
    from stream.statistics.normalize import Normalize


def normalization(loader: Loader, key: Literal["action", "state"] = "action") -> Normalize:
    """Return the ``stream.Normalize`` that an adapter chose, to denormalise a model's output or to export statistics.

    ``Loader.normalize`` is the same for loaders of ``make_loader``, and None where this raises.

    Args:
        loader: Loader of an adapter.
        key: Vector.

    Raises:
        ArgumentError: The loader does not normalise the vector.
    """
    # Workers import this package, and need no Grain.
    from stream.base.errors import ArgumentError
    from stream.statistics.normalize import Normalize

    for transform in loader.run_config.transforms:
        if isinstance(transform, Normalize) and key in transform.keys:
            return transform
    raise ArgumentError(
        f"the loader does not normalise the {key}; its transforms are {loader.run_config.transforms!r:.200}"
    )
