"""Names of the files that are bags; without the library that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from convert.source.places import find_files

METADATA = "metadata.yaml"
"""File that makes a folder a ROS 2 bag."""
PATTERNS = ("*.bag", "*.mcap", "*.db3", "*.bag.active")
"""Names of the files that are bags, or parts of a folder that lacks its metadata."""


def find_bags(place: str, roots: Sequence[str]) -> tuple[str, list[Path]]:
    """Return the folder and the bags that a place names; raises SourceError if there are none."""
    return find_files(place, roots, PATTERNS, stores=[METADATA])
