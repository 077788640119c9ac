"""The limits of this process that a conversion cannot work in, found before it begins."""

from __future__ import annotations

import resource

from convert.errors import UsageError

ADDRESS_SPACE = 4 << 30
"""Bytes of addresses for each process: 3.4 GB were in use on two cores, of which 0.5 GB is memory. The rest is reserved
by the threads of the libraries, some of which wait for ever, or end in a traceback, if they get only a part of it."""


def check_address_space() -> None:
    """Raise UsageError if this process may not have the addresses that a conversion takes (``ulimit -v``)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < ADDRESS_SPACE:
        raise UsageError(
            f"the address space is limited to {soft / 1e9:.1f} GB (ulimit -v), each process of a conversion takes "
            f"{ADDRESS_SPACE / 1e9:.1f} GB of it, most of which is never used; raise the limit, or limit memory with a "
            "control group instead"
        )
