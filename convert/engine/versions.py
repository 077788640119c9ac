"""Versions of the libraries that make the bytes of a conversion."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

from convert import __version__

WRITING_LIBRARIES = (
    *("apache-beam", "array-record", "numpy", "opencv-python-headless", "pyarrow", "simplejpeg"),
    "tensorflow-datasets",
)


def library_versions(other_libraries: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of this package, of ``WRITING_LIBRARIES`` and of other libraries, by name."""
    return {"pairstream": __version__} | {name: _version(name) for name in (*WRITING_LIBRARIES, *other_libraries)}


def _version(library_name: str) -> str:
    try:
        return metadata.version(library_name)
    except metadata.PackageNotFoundError:
        return "not installed"
