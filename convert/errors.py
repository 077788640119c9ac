"""The errors of the conversion and the exit codes that they end in."""

from __future__ import annotations

EXIT_FAILED = 1
"""The conversion stopped; what was finished stays, and the same command goes on from there."""
EXIT_USAGE = 2
"""Nothing was started: a wrong name, path, option or configuration."""
EXIT_DAMAGED = 3
"""The conversion is complete, but damaged input was left out; see quarantine.jsonl."""
EXIT_INTERRUPTED = 130
"""Ctrl-C."""


class ConvertError(Exception):
    """Base of all errors of ours; the message is one sentence that a user can act on."""

    exit_code = EXIT_FAILED


class UsageError(ConvertError):
    """What was asked for cannot be started: found before anything was written."""

    exit_code = EXIT_USAGE


class SourceError(UsageError):
    """The source is not there, incomplete, or not a TFDS dataset of the expected kind."""


class ConflictError(UsageError):
    """The output already holds something else: other parameters, another format version, another source."""


class ShardError(ConvertError):
    """One shard could not be written or read; names the shard and the reason."""


class DamagedRecord(ConvertError):
    """A TFRecord entry that cannot be read. ``position`` is its number in the file, ``rest`` says that no further
    record of the file can be read."""

    def __init__(self, message: str, *, position: int, rest: bool) -> None:
        super().__init__(message)
        self.position = position
        self.rest = rest


class MalformedEpisode(ConvertError):
    """A record that was read but is not an episode of the declared features."""


class CorruptFrame(ConvertError):
    """An image that cannot be decoded."""
