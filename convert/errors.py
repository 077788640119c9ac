"""Errors of the conversion, and exit codes of its commands."""

from __future__ import annotations

from stream.base.errors import EXIT_FAILED as EXIT_FAILED
from stream.base.errors import EXIT_INTERRUPTED as EXIT_INTERRUPTED
from stream.base.errors import EXIT_USAGE as EXIT_USAGE
from stream.base.errors import StreamError

EXIT_DAMAGED = 3
"""Exit code of a conversion that is complete without some damaged input; see quarantine.jsonl."""


class ConvertError(StreamError):
    """Base class of the errors of the conversion; each message is one sentence that a user can act on."""


class UsageError(ConvertError):
    """A request that cannot be started; nothing was written."""

    refused = True


class ConfigError(UsageError, ValueError):
    """A configuration that cannot be used; the message names the file and the field."""


class UnknownLayoutError(ConfigError):
    """Files of arrays that match no preset, so that only a layout can describe them."""


class SourceError(UsageError):
    """A source that is missing, incomplete, or not a dataset of the expected kind."""


class ConflictError(UsageError):
    """An output that holds something else: other parameters, another format version, another source."""


class ShardError(ConvertError):
    """A shard that cannot be written or read; names the shard and the reason."""


class DamagedRecord(ConvertError):
    """A record that cannot be read; ``rest`` is True if no further record of the file can be read."""

    def __init__(self, message: str, *, rest: bool) -> None:
        super().__init__(message)
        self.rest = rest


class DamagedEpisode(ConvertError):
    """An episode that cannot be converted.

    Attributes:
        reason: Word for it in the manifest: ``unreadable``, ``malformed``, ``missing_frames``, ``unmatched_frames``, or
            ``undeclared`` for data of a file beyond its declared episodes.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class MalformedEpisode(DamagedEpisode):
    """A readable record that is not an episode of the declared features."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="malformed")


class CorruptFrame(ConvertError):
    """An image that cannot be decoded."""
