"""Finding the dataset that a registry entry or ``--datasets`` names."""

from __future__ import annotations

from collections.abc import Sequence

from convert.source.lerobot.dataset import find_repository
from convert.source.protocol import Source
from convert.source.rlds.dataset import find_dataset


def find_source(roots: Sequence[str], tfds_name: str, version: str) -> Source:
    """Find a TFDS dataset below one of several roots; see ``convert.source.rlds.dataset.find_dataset``."""
    return find_dataset(roots, tfds_name, version)


def find_port(roots: Sequence[str], repository: str) -> Source:
    """Find a LeRobot dataset; see ``convert.source.lerobot.dataset.find_repository``."""
    return find_repository(roots, repository)
