"""Errors for libraries that an extra of this package would install."""

import contextlib
from collections.abc import Iterator


def missing(module: str, extra: str, *, by: str) -> str:
    """Return the sentence that a module is missing, and how to install it.

    >>> missing("jax", "jax", by="stream.jax")
    "stream.jax needs jax, which is not installed; install pairstream[jax]: pip install -c constraints.txt -e '.[jax]'"
    """
    install_command = f"pip install -c constraints.txt -e '.[{extra}]'"
    return f"{by} needs {module}, which is not installed; install pairstream[{extra}]: {install_command}"


@contextlib.contextmanager
def imports_of(extra: str, *, by: str) -> Iterator[None]:
    """Name the extra in the ModuleNotFoundError of a failed import."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing(error.name or extra, extra, by=by), name=error.name) from None
