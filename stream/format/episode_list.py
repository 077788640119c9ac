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
from stream.base.reading import read_whole

OPENPI = ("episode_metadata/recording_folderpath", "episode_metadata/file_path")
"""Features of a DROID episode that openpi joins with ``--`` to its key
(openpi, src/openpi/training/droid_rlds_dataset.py)."""
_MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class EpisodeList:
    """Episodes to keep, or to leave out.

    Attributes:
        names: Names of episodes: ``episode_id``, or openpi's key of a DROID episode. ``*`` stands for any text.
        keeps: True to keep them alone, False to leave them out.
    """

    names: tuple[str, ...]
    keeps: bool

    @cached_property
    def _exact(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """The names with ``*``, in which nothing else stands for other text."""
        literals_by_name = (map(re.escape, name.split("*")) for name in self.names if "*" in name)
        return tuple(re.compile(".*".join(literals), re.DOTALL) for literals in literals_by_name)

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


def read_by_name(argument: Any, member_names: Sequence[str], argument_name: str) -> dict[str, Any]:
    """Return a mapping by member or dataset, or that of a JSON file.

    Args:
        argument: None, a mapping, or a file.
        member_names: Names that the mapping may have.
        argument_name: Name of the argument, for messages.

    Raises:
        ArgumentError: The argument is something else, or has an unknown name.
    """
    content = {} if argument is None else read_value(argument, argument_name)
    if not isinstance(content, Mapping):
        raise ArgumentError(f"{argument_name}={argument!r:.100}; expected a mapping of members, or a JSON file of one")
    for member_name in content:
        if member_name not in member_names:
            raise ArgumentError(
                f"{argument_name}: no member {member_name!r:.80}; {closest(str(member_name), member_names, noun='members')}"
            )
    return {str(member_name): value for member_name, value in content.items() if value is not None}


def read_list(argument: Any, context: str) -> EpisodeList:
    """Return a list of episodes.

    Args:
        argument: Names to keep; ``{"keep": names}`` or ``{"leave_out": names}``; or a file of one of these.
        context: Place of the argument, for messages.

    Raises:
        ArgumentError: The argument is something else, or a file cannot be read.
    """
    content = read_value(argument, context)
    keeps_listed = True
    if isinstance(content, Mapping):
        if len(content) != 1 or not set(content) <= {"keep", "leave_out"}:
            raise ArgumentError(f"{context}: keys {list(content)!r:.100}; expected `keep` or `leave_out`")
        ((list_kind, content),) = content.items()
        keeps_listed = list_kind == "keep"
        content = read_value(content, context)
    episode_names = list(content) if isinstance(content, Iterable) and not isinstance(content, Mapping | bytes) else []
    if not episode_names or not all(isinstance(name, str) for name in episode_names):
        raise ArgumentError(f"{context}: {content!r:.100}; expected a list of texts, the ids of episodes")
    return EpisodeList(tuple(sorted({str(name) for name in episode_names})), keeps_listed)


def read_value(argument: Any, context: str) -> Any:
    """Return a value, or the content of the JSON file, or the lines of the text file, that it names."""
    if not isinstance(argument, str | Path):
        return argument
    try:
        content = read_whole(argument, _MAX_BYTES).decode()
        if not str(argument).endswith(".json"):
            return [line.strip() for line in content.splitlines() if line.strip()]
        return json.loads(content)
    except OSError as error:
        raise ArgumentError(
            f"{context}: {argument}: cannot be read ({error.strerror}); give a file, or the value"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{context}: {argument}: not a JSON file ({error!s:.100})") from None
