"""Places of sources: paths, and names below the folders of ``--source``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from convert.errors import UsageError
from stream.storage.remote import is_remote, join

JOIN = "+root:"
"""Text between the places of converted roots that become one dataset."""


def candidates(place: str, roots: Sequence[str]) -> list[str]:
    """Return where a dataset may be: a path itself, made absolute, or a name below each root.

    >>> candidates("lerobot/pusht", ["/hub", "s3://bucket"]), candidates("/data/mine/", ["/hub"])
    (['/hub/lerobot/pusht', 's3://bucket/lerobot/pusht'], ['/data/mine'])
    """
    place = place if place == "/" else place.rstrip("/")
    if is_remote(place):
        return [place]
    if place.startswith(("/", ".")):
        return [os.path.abspath(place)]
    return [join(root, *place.split("/")) for root in roots]


def refuse_layout(kind: str, layout: Mapping[str, Any]) -> None:
    """Raise UsageError if an entry has a layout that its kind does not take."""
    if layout:
        raise UsageError(f"layout: {', '.join(layout)}: {kind} datasets have one layout of their files; leave it out")
