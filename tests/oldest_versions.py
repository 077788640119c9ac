"""The oldest versions that ``pyproject.toml`` allows, as constraints for pip: ``python -m tests.oldest_versions``."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

EXTRAS = ("convert", "s3", "gcs", "torch", "lightning", "jax")
"""Extras whose floors are tested; the others are for development, or for services."""

_FLOOR = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(\[[^]]*\])?>=(?P<version>[0-9][^,; ]*)")


def oldest_versions(extras: Sequence[str] = EXTRAS) -> list[str]:
    """Return ``name==version`` of each library that streaming and some extras need.

    Raises:
        ValueError: A requirement has no floor.
    """
    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    pins = []
    for requirement in wanted:
        if requirement.startswith(project["name"]):
            continue
        floor = _FLOOR.match(requirement)
        if floor is None:
            raise ValueError(f"pyproject.toml: {requirement!r} has no floor; expected name>=version")
        pins.append(f"{floor['name']}=={floor['version']}")
    return pins


if __name__ == "__main__":
    print("\n".join(oldest_versions(sys.argv[1:] or EXTRAS)))
