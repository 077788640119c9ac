"""Grain, imported without its warning that jax is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from logging import LogRecord

from absl import logging


def _is_wanted(record: LogRecord) -> bool:
    return "Failed to load jax profiler" not in record.getMessage()


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    logger = logging.get_absl_logger()
    logger.addFilter(_is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(_is_wanted)


with _without_warning():
    import grain

__all__ = ["grain"]
