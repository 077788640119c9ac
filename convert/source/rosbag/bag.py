"""An open bag: its topics and its messages."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

from convert.errors import ConfigError, DamagedEpisode, MalformedEpisode
from convert.source.rosbag.layout import METADATA
from stream.base.errors import closest

_DISTRIBUTIONS = {
    store.value.removeprefix("ros2_"): store for store in Stores if store.value.startswith(("ros1_", "ros2_"))
}
_OPEN = ("-wal", "-journal")
"""Suffixes of the files that SQLite leaves next to a database that was not closed."""


class Message(NamedTuple):
    """A message: its topic, when it was received in nanoseconds, and its content."""

    topic: str
    received: int
    content: Any


class Bag:
    """An open bag: its topics by name, and the receipt of its first and last message (``start``, ``stop``) in ns."""

    def __init__(self, reader: AnyReader, path: Path) -> None:
        self._reader = reader
        self._path = path
        self.topics = dict(sorted(reader.topics.items()))
        self.start, self.stop = reader.start_time, reader.end_time - 1

    @property
    def types(self) -> Any:
        """Store of the message types of the bag."""
        return self._reader.typestore

    def message_type(self, topic: str) -> str:
        """Return the type of a topic's messages.

        Raises:
            MalformedEpisode: There is no such topic, its messages have several types, or a type without definition.
        """
        if topic not in self.topics:
            raise MalformedEpisode(f"no topic {topic!r}; {closest(topic, self.topics, noun='topics')}")
        type_name = self.topics[topic].msgtype
        if type_name is None:
            raise MalformedEpisode(f"{topic} has messages of several types, expected one type")
        if type_name not in self.types.fielddefs:
            advice = "record it again as MCAP, which stores the definitions"
            raise MalformedEpisode(f"{topic}: the bag has no definition of {type_name}; {advice}")
        return type_name

    def messages(self, topics: Collection[str], start: int | None = None, stop: int | None = None) -> Iterator[Message]:
        """Yield the messages of some topics received in [start, stop), in order; DamagedEpisode if the bag is."""
        connections = [connection for connection in self._reader.connections if connection.topic in topics]
        if not connections:
            return
        with _readable(self._path):
            for connection, received, serialized in self._reader.messages(connections, start, stop):
                yield Message(connection.topic, received, self._reader.deserialize(serialized, connection.msgtype))


@contextlib.contextmanager
def open_bag(path: Path, *, distribution: str | None = None) -> Iterator[Bag]:
    """Open a bag.

    Args:
        path: A file, or the folder of a ROS 2 bag.
        distribution: ROS 2 distribution whose message types are used if the bag stores none.

    Raises:
        DamagedEpisode: It cannot be read, was not closed, or has fewer messages than it says.
        ConfigError: There is no such distribution.
    """
    if distribution is not None and distribution not in _DISTRIBUTIONS:
        hint = closest(distribution, _DISTRIBUTIONS, noun="distributions")
        raise ConfigError(f"distribution {distribution!r}: {hint}")
    _check_closed(path)
    typestore = get_typestore(_DISTRIBUTIONS[distribution]) if distribution else None
    with contextlib.ExitStack() as stack:
        with _readable(path):
            reader = stack.enter_context(AnyReader([path], default_typestore=typestore))
            bag = Bag(reader, path)
        _check_count(path, reader)
        yield bag


def list_topics(bag: Bag) -> list[str]:
    """Return a line for each topic of a bag: name, type, count of messages and rate."""
    seconds = max(bag.stop - bag.start, 1) / 1e9
    return [
        f"{name}: {topic.msgtype or 'several types'}, {topic.msgcount:,} messages, {topic.msgcount / seconds:.1f} Hz"
        for name, topic in bag.topics.items()
    ]


def _check_closed(path: Path) -> None:
    """Raise DamagedEpisode if the names of the files show that a recording was not closed."""
    message = ""
    if path.suffix == ".active":
        message = f"was not closed; run `rosbag reindex {path.name}` and rename it to {path.stem}"
    elif path.suffix == ".db3":
        message = f"is in a folder without {METADATA}; run `ros2 bag reindex {path.parent}`"
    logs = [log.name for log in path.glob("*.db3-*") if log.name.endswith(_OPEN) and log.stat().st_size]
    if logs:
        log, database = min(logs), min(logs).rpartition("-")[0]
        vacuum = f"run `sqlite3 {database} VACUUM` there, then `ros2 bag reindex {path}`"
        message = f"{database} was not closed, as {log} has messages; {vacuum}"
    if message:
        raise DamagedEpisode(message, reason="unreadable")


def _check_count(path: Path, reader: AnyReader) -> None:
    """Raise DamagedEpisode if the files of a ROS 2 bag have another count of messages than its metadata say."""
    storage: Any = getattr(reader.readers[0], "storage", None)
    files = getattr(storage, "storages", None)
    if files is None:
        return
    num_found, declared = sum(file.metadata.message_count for file in files), storage.metadata.message_count
    if num_found != declared:
        message = f"{METADATA} says {declared:,} messages, its files have {num_found:,}; run `ros2 bag reindex {path}`"
        raise DamagedEpisode(message, reason="unreadable")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what reading a damaged bag raises into DamagedEpisode, with the command that mends such bags."""
    try:
        yield
    except (DamagedEpisode, MemoryError):
        raise
    except Exception as error:
        # The library raises assertions and errors of struct, lz4 and SQLite, too.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedEpisode(f"cannot be read ({reason}); {_remedy(path, error)}", reason="unreadable") from error


def _remedy(path: Path, error: Exception) -> str:
    """Return what to do about an error of the library."""
    if "default_typestore" in str(error):
        return f"give layout: distribution, one of {', '.join(_DISTRIBUTIONS)}"
    if "Profile is not ros2" in str(error) or isinstance(error, KeyError):
        return "only MCAP files with ROS 2 messages are read; write a function for others, python:FILE.py:FUNCTION"
    if path.is_dir():
        return f"if it was not closed, run `ros2 bag reindex {path}`"
    if path.suffix == ".mcap":
        return f"if it was not closed, run `mcap recover {path.name} -o recovered.mcap`"
    return f"if it was not closed, run `rosbag reindex {path.name}`"
