"""Grain, imported without its warning that jax is missing."""

from logging import LogRecord

from absl import logging


def _is_wanted(record: LogRecord) -> bool:
    return "Failed to load jax profiler" not in record.getMessage()


logging.get_absl_logger().addFilter(_is_wanted)
try:
    import grain as grain
finally:
    logging.get_absl_logger().removeFilter(_is_wanted)
