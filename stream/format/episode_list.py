"""Lists of episodes to keep or to leave out, as a loader and a conversion take them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stream.base.errors import ArgumentError, closest
from stream.base.reading import read_limited

OPENPI = ("episode_metadata/recording_folderpath", "episode_metadata/file_path")
"""Features of a DROID episode that openpi joins with ``--`` to its key
(openpi, src/openpi/training/droid_rlds_dataset.py)."""
_MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class EpisodeList:
    """Episodes to keep, or to leave out.

    ``names`` are those of ``episode_id``, or openpi's keys of DROID episodes; ``*`` matches any text.
    """

    names: tuple[str, ...]
    keeps: bool

    @cached_property
    def _exact(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """Patterns of the names with ``*``; all other characters match only themselves."""
        wildcards = (episode_id.split("*") for episode_id in self.names if "*" in episode_id)
        return tuple(re.compile(".*".join(map(re.escape, literals)), re.DOTALL) for literals in wildcards)

    def describe(self) -> str:
        """Return the kind and count of the names with their hash, for manifests."""
        names_hash = hashlib.sha256("\0".join(self.names).encode()).hexdigest()[:16]
        return f"{'keep' if self.keeps else 'leave out'} {len(self.names):,} names, {names_hash}"

    def chooses(self, episode_names: Iterable[str]) -> bool:
        """Return whether an episode with any of these names is kept.

        >>> EpisodeList(("a", "*failure*"), keeps=False).chooses(["b", "/data/success/1"])
        True
        """
        is_listed = any(
            name in self._exact or any(pattern.fullmatch(name) for pattern in self.patterns) for name in episode_names
        )
        return is_listed == self.keeps


def read_by_name(value: Any, allowed: Sequence[str], argument: str) -> dict[str, Any]:
    """Return a mapping by member or dataset, empty for None, or read from a JSON file.

    Raises ArgumentError for anything else, and for a name that is not allowed.
    """
    content = {} if value is None else read_value(value, argument)
    if not isinstance(content, Mapping):
        raise ArgumentError(f"{argument}={value!r:.100}; expected a mapping of members, or a JSON file of one")
    for name in content:
        if name not in allowed:
            raise ArgumentError(f"{argument}: no member {name!r:.80}; {closest(str(name), allowed, noun='members')}")
    return {str(name): choice for name, choice in content.items() if choice is not None}


def read_list(value: Any, context: str) -> EpisodeList:
    """Return a list of episodes; raise ArgumentError if it is something else, or a file cannot be read.

    ``value`` has names to keep, is ``{"keep": names}`` or ``{"leave_out": names}``, or a file with either.
    """
    content = read_value(value, context)
    keeps = True
    if isinstance(content, Mapping):
        if len(content) != 1 or not set(content) <= {"keep", "leave_out"}:
            raise ArgumentError(f"{context}: keys {list(content)!r:.100}; expected `keep` or `leave_out`")
        ((list_kind, content),) = content.items()
        keeps = list_kind == "keep"
        content = read_value(content, context)
    episode_ids = list(content) if isinstance(content, Iterable) and not isinstance(content, Mapping | bytes) else []
    if not episode_ids or not all(isinstance(episode_id, str) for episode_id in episode_ids):
        raise ArgumentError(f"{context}: {content!r:.100}; expected a list of texts, the ids of episodes")
    return EpisodeList(tuple(sorted({str(episode_id) for episode_id in episode_ids})), keeps)


def read_value(value: Any, context: str) -> Any:
    """Return a value, or the content of the JSON file, or the lines of the text file, that it names."""
    if not isinstance(value, str | Path):
        return value
    try:
        content = read_limited(value, _MAX_BYTES).decode()
        if not str(value).endswith(".json"):
            return [line.strip() for line in content.splitlines() if line.strip()]
        return json.loads(content)
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); give a file, or the value"
        raise ArgumentError(f"{context}: {value}: {reason}") from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{context}: {value}: not a JSON file ({error!s:.100})") from None
