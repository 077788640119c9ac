"""Groups of processes: what says that this process is one of several."""

from __future__ import annotations

import os
import sys

from stream.base.errors import ArgumentError


def check_alone() -> None:
    """Raise ArgumentError if this process is one of several, which would all train on the rows of all.

    torch and JAX are asked only if this process has imported them.
    """
    torch, jax = sys.modules.get("torch.distributed"), sys.modules.get("jax")
    size = os.environ.get("WORLD_SIZE", "")
    if torch is not None and torch.is_available() and torch.is_initialized() and torch.get_world_size() > 1:
        group = f"torch.distributed has {torch.get_world_size()} processes"
    elif size.isdecimal() and int(size) > 1:
        group = f"WORLD_SIZE is {size}"
    # The count is asked only once several processes may be connected: the question starts JAX's backend.
    elif jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1:
        group = f"JAX has {jax.process_count()} processes"
    else:
        return
    raise ArgumentError(
        f"{group}, and the loader was not told its rank, so each process would get the rows of all; give make_loader "
        "rank= and world_size=, for example **stream.torch.ranks() or **stream.jax.ranks(); rank=0, world_size=1 gives "
        "every process all rows on purpose"
    )
