"""The loader under the name of its distribution: ``import pairstream as ps; ps.make_loader(...)``.

``ps`` has all names of ``stream``. ``ps.torch`` and ``ps.jax`` are ``stream.torch`` and ``stream.jax``, and ``ps.show``
draws a batch in a notebook.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import stream

if TYPE_CHECKING:
    from pairstream.replay.show import show as show

if "make_loader" not in getattr(stream, "__all__", ()):  # hasattr would import the loader
    raise ImportError(
        f"`import stream` finds {stream.__file__ or list(stream.__path__)}, which hides the package `stream` of "
        "pairstream; rename it, or start Python in another folder"
    )

__all__ = sorted([*stream.__all__, "show"])


def __getattr__(name: str) -> Any:
    if name in ("jax", "torch"):
        return importlib.import_module(f"stream.{name}")
    if name == "show":
        return importlib.import_module("pairstream.replay.show").show
    return getattr(stream, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "jax", "torch"})
