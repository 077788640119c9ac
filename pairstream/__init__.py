"""The loader under the name of its distribution: ``import pairstream as ps; ps.make_loader(...)``.

It has all names of ``stream``, and ``ps.torch`` and ``ps.jax`` for ``stream.torch`` and ``stream.jax``.
"""

from __future__ import annotations

import importlib
from typing import Any

import stream

if not hasattr(stream, "make_loader"):
    raise ImportError(
        f"`import stream` finds {stream.__file__ or list(stream.__path__)}, which hides the package `stream` of "
        "pairstream; rename it, or start Python in another folder"
    )

__all__ = [*stream.__all__]


def __getattr__(name: str) -> Any:
    if name in ("jax", "torch"):
        return importlib.import_module(f"stream.{name}")
    return getattr(stream, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "jax", "torch"})
