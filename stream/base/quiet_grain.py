"""Grain, imported without two warnings that users cannot act on: that jax is missing, that its protobuf code is old."""

import warnings
from logging import LogRecord

from absl import logging


def _is_wanted(record: LogRecord) -> bool:
    return "Failed to load jax profiler" not in record.getMessage()


logging.get_absl_logger().addFilter(_is_wanted)
try:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Protobuf gencode version", UserWarning)
        import grain as grain
finally:
    logging.get_absl_logger().removeFilter(_is_wanted)
