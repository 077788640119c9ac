"""Limits of this process in which a conversion cannot work, found before it begins."""

from __future__ import annotations

import resource

from convert.errors import UsageError

ADDRESS_SPACE = 4 << 30
"""Bytes of addresses for each process, most of which the threads of the libraries reserve and never use. With fewer
addresses some libraries wait for ever or end in a traceback."""


def check_address_space() -> None:
    """Raise UsageError if this process may not have the addresses that a conversion takes (``ulimit -v``)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < ADDRESS_SPACE:
        raise UsageError(
            f"the address space is limited to {soft / 1e9:.1f} GB (ulimit -v), each process of a conversion takes "
            f"{ADDRESS_SPACE / 1e9:.1f} GB of it, most of which is never used; raise the limit, or limit memory with a "
            "control group instead"
        )
