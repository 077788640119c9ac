"""Versions of the libraries that make the bytes of a conversion."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from importlib import metadata

from convert import __version__

WRITING_LIBRARIES = (
    *("apache-beam", "array-record", "numpy", "opencv-python-headless", "pyarrow", "simplejpeg"),
    "tensorflow-datasets",
)


def library_versions(other_libraries: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of this package, of ``WRITING_LIBRARIES`` and of other libraries, by name."""
    versions = {"pairstream": __version__} | dict.fromkeys((*WRITING_LIBRARIES, *other_libraries), "not installed")
    for name in versions.keys() - {"pairstream"}:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
