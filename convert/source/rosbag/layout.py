"""Layout of bags: their files, the topics that become features, the clock of the steps, and the episodes of a bag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from convert.errors import ConfigError
from convert.source.locations import find_files
from stream.base.configs import Entry, list_faults

METADATA = "metadata.yaml"
"""File that makes a folder a ROS 2 bag."""
PATTERNS = ("*.bag", "*.mcap", "*.db3", "*.bag.active")
"""Names of the files that are bags, or parts of a folder that lacks its metadata."""


def find_bags(location: str, roots: Sequence[str]) -> tuple[str, list[Path]]:
    """Return the folder and the bags that a place names; raises SourceError if there are none."""
    return find_files(location, roots, PATTERNS, stores=[METADATA])


Text = Annotated[str, Field(min_length=1)]
STAMP = "stamp"
"""Step feature with the time of each step in nanoseconds."""
LANGUAGE = "language"
"""Episode feature of the instruction."""
MARK = "mark"
"""Episode feature with the value of the topic that cuts the episodes."""


class Stream(Entry):
    """A feature of the steps, taken from the messages of a topic.

    Attributes:
        field: Path in the message, such as ``pose.position.x`` or ``data[3]``; default the main field of the type.
        names: Names of the values; of a JointState the joints to take, in this order.
        take: The ``last`` value at or before a step, or the ``nearest``; default last, of the clock's topic nearest.
        hold: Whether a value holds until the next one, however long; default for texts only.
        encoding: Encoding of pictures whose messages name none or a wrong one.
    """

    topic: Text
    field: Text | None = None
    names: tuple[Text, ...] = ()
    take: Literal["last", "nearest"] | None = None
    hold: bool = False
    encoding: Text | None = None


class Cuts(Entry):
    """Several episodes in a bag, cut by a topic or by a table.

    Attributes:
        topic: Topic whose value separates episodes: an episode lasts while a Bool is true, or while a text or number
            stays the same.
        field: Path of the value in its messages.
        without: Values between episodes.
        csv: Table with the columns file, start and stop in seconds; further columns become values of the episode.
        times: Whether these seconds count from the first message of the bag, or are Unix times.
    """

    topic: Text | None = None
    field: Text = "data"
    without: tuple[str, ...] = ()
    csv: Text | None = None
    times: Literal["bag", "unix"] = "bag"

    @model_validator(mode="after")
    def _check(self) -> Cuts:
        if (self.topic is None) == (self.csv is None):
            raise ValueError("expected either a topic or a csv")
        return self


class Layout(Entry):
    """Definition of the episodes of bags.

    Attributes:
        rate: Steps per second.
        clock: Topic whose first message with a value of every feature is the first step, and whose last ends the steps.
        stamps: Times of messages: of their headers, or of receipt. Messages without a header have the time of receipt.
        max_gap: Seconds up to which a value stands for a step.
        features: Features of the steps by name.
        episodes: Cuts of bags into episodes; by default a bag is one episode.
        language: Instruction of all episodes.
        distribution: ROS 2 distribution of bags that do not store their message types, such as humble.
    """

    rate: Annotated[float, Field(gt=0, le=1e5)]
    clock: Text
    stamps: Literal["header", "receive"] = "header"
    max_gap: Annotated[float, Field(gt=0)] = 0.5
    features: Annotated[dict[Text, Stream], Field(min_length=1)]
    episodes: Cuts | None = None
    language: Text | None = None
    distribution: Text | None = None

    @model_validator(mode="after")
    def _check(self) -> Layout:
        if STAMP in self.features:
            raise ValueError(f"features: {STAMP} is the name of the times of the steps; choose another name")
        return self

    @property
    def gap(self) -> int:
        """``max_gap`` in nanoseconds."""
        return round(self.max_gap * 1e9)


def parse_layout(layout_keys: Mapping[str, Any], *, context: str) -> Layout:
    """Return a layout; raises ConfigError that lists every fault with its field and the found value."""
    try:
        return Layout.model_validate(layout_keys)
    except ValidationError as error:
        raise ConfigError(list_faults(error, context=f"{context}: layout")) from None
