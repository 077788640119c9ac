"""Arguments of ``make_loader`` that define the samples and the content of their batches."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stream.base.arguments import check_whole
from stream.base.errors import ArgumentError
from stream.base.plain_values import canonical_choice, canonical_columns
from stream.batch.cameras import Cameras, canonical_cameras
from stream.batch.resize import FILTERS, FITS, ImageFilter, ImageFit, ImageSize, canonical_size
from stream.batch.spaces import SPACES, UNKNOWN_UNITS, UNMAPPED, ActionSpace, StateSpace, UnknownUnits, Unmapped
from stream.batch.spec import METADATA, Metadata
from stream.batch.vectors import REDUCTIONS, Reduction
from stream.format.names import VectorName
from stream.format.spaces import SpaceName
from stream.order.filters import MISSING, Missing, canonical_filters
from stream.order.window import BOUNDS, Bounds, canonical_frames, canonical_steps

_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "seed": (None, None),
    "samples_per_episode": (0, 1_000_000),
    "passes": (1, 1_000_000),
    "min_actions": (1, 1_000_000),
}
"""Least and largest value of each whole number."""
MOST_STEPS = 100_000
STEPS = {"action_from": -MOST_STEPS, "horizon": 1, "state_from": -MOST_STEPS, "state_horizon": 1}
"""Least value of each count of steps, which may also be a time."""
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "metadata": METADATA,
    "action": REDUCTIONS,
    "bounds": BOUNDS,
    "image_fit": FITS,
    "image_filter": FILTERS,
    **{f"{which}_space": (None, *spaces) for which, spaces in SPACES.items()},
    "unmapped": UNMAPPED,
    "unknown_units": UNKNOWN_UNITS,
    "missing": MISSING,
}


_BY_MEMBER = ("filters", "episodes", "keep_ranges", "sample_weights", "action_columns", "state_columns")
"""Arguments that may be mappings of members."""
_RESIZING = ("image_fit", "image_filter")
_CONTENT = (
    *("cameras", "image_size", *_RESIZING, "frames", "bounds", "metadata", "columns", "language"),
    *("action", "action_from", "horizon", "action_columns", "action_space"),
    *("state_from", "state_horizon", "state_columns", "state_space"),
)
"""Arguments that define the content of batches, whether or not they choose samples too."""


@dataclass(frozen=True, kw_only=True)
class SampleSpec:
    """Arguments of ``make_loader`` that define the samples.

    Raises:
        ArgumentError: An argument is wrong.
    """

    seed: int = 0
    shuffle: str = "global"
    samples_per_episode: int = 0
    passes: int | None = None
    min_actions: int = 1
    filters: Any = None
    missing: Missing = "error"
    episodes: Any = None
    keep_ranges: Any = None
    sample_weights: str | Mapping[str, str] | None = None
    metadata: Metadata = "full"
    cameras: Cameras = None
    image_size: ImageSize = None
    image_fit: ImageFit = "stretch"
    image_filter: ImageFilter = "area"
    frames: Sequence[int | str] | None = None
    bounds: Bounds = "inside"
    action: Reduction = "window"
    action_from: int | str = 0
    horizon: int | str | None = None
    state_from: int | str = 0
    state_horizon: int | str = 1
    action_columns: Mapping[str, Sequence[Any]] | None = None
    state_columns: Mapping[str, Sequence[Any]] | None = None
    action_space: ActionSpace | None = None
    state_space: StateSpace | None = None
    unmapped: Unmapped = "error"
    unknown_units: UnknownUnits = "refuse"
    columns: Sequence[str] = ()
    language: str | Sequence[str] = "language"

    def __post_init__(self) -> None:
        for name, (least, most) in _NUMBERS.items():
            if name == "passes" and self.passes is None:
                continue
            number = check_whole(name, getattr(self, name), least=least)
            if most is not None and number > most:
                raise ArgumentError(f"{name}={number}; at most {most:,}")
            object.__setattr__(self, name, number)
        for name, least in STEPS.items():
            if name != "horizon" or self.horizon is not None:
                value = canonical_steps(name, getattr(self, name), least=least, most=MOST_STEPS)
                object.__setattr__(self, name, value)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ArgumentError(f"{name}={getattr(self, name)!r}; expected one of {', '.join(map(str, choices))}")
        if not isinstance(self.columns, list | tuple) or not all(isinstance(column, str) for column in self.columns):
            raise ArgumentError(f"columns={self.columns!r:.100}; expected a list of column names")
        if self.columns and self.metadata != "full":
            raise ArgumentError(
                f"columns={self.columns!r:.100}: with metadata={self.metadata!r} a batch has none of them"
            )
        for name in ("action_columns", "state_columns"):
            object.__setattr__(self, name, canonical_columns(name, getattr(self, name)))
        if self.action != "window" and self.action_from:
            raise ArgumentError(
                f"action_from={self.action_from} with action={self.action!r}; only action='window' begins at another "
                "step than t"
            )
        if self.action == "sum" and self.action_space not in (None, "eef_delta"):
            raise ArgumentError(
                f"action='sum' with action_space={self.action_space!r}, whose values are not displacements in every "
                "dataset; take action_space='eef_delta'"
            )
        object.__setattr__(self, "cameras", canonical_cameras(self.cameras))
        object.__setattr__(self, "image_size", canonical_size(self.image_size))
        object.__setattr__(self, "frames", canonical_frames(self.frames))
        object.__setattr__(self, "filters", canonical_filters(self.filters))
        for name in ("episodes", "keep_ranges"):
            object.__setattr__(self, name, canonical_choice(name, getattr(self, name)))
        object.__setattr__(self, "columns", tuple(self.columns))
        given = [self.language] if isinstance(self.language, str) else self.language
        is_list = isinstance(given, list | tuple) and all(isinstance(each, str) and each for each in given)
        if not is_list or not given:
            raise ArgumentError(f"language={given!r:.100}; expected a column of texts, or a list of them to draw from")
        if self.language != "language" and self.metadata != "full":
            raise ArgumentError(f"language={given!r:.100}: with metadata={self.metadata!r} a batch has no language")
        object.__setattr__(self, "language", self.language if isinstance(self.language, str) else list(given))
        object.__setattr__(self, "sample_weights", _canonical_weights(self.sample_weights))
        if self.sample_weights and self.samples_per_episode:
            raise ArgumentError(
                f"samples_per_episode={self.samples_per_episode} with sample_weights: the first draws evenly from the "
                "episodes, the second by weight; leave one of them out"
            )

    @property
    def languages(self) -> list[str]:
        """Columns of texts to draw from."""
        return [self.language] if isinstance(self.language, str) else list(self.language)

    @property
    def spaces(self) -> dict[VectorName, SpaceName]:
        """Canonical space of each vector that is loaded in one."""
        chosen: dict[VectorName, SpaceName | None] = {"action": self.action_space, "state": self.state_space}
        return {which: space for which, space in chosen.items() if space is not None}

    @property
    def content(self) -> dict[str, Any]:
        """Arguments that define the content of batches, in their JSON form."""
        names = [name for name in _CONTENT if self.image_size is not None or name not in _RESIZING]
        arguments: dict[str, Any] = json.loads(json.dumps({name: getattr(self, name) for name in names}))
        return arguments

    def without(self, members: Collection[str]) -> SampleSpec:
        """Return the options without what they say of some members."""
        cut: dict[str, Any] = {}
        for name in _BY_MEMBER:
            if isinstance(given := getattr(self, name), Mapping):
                cut[name] = {member: value for member, value in given.items() if member not in members} or None
        return replace(self, **cut)

    def own_columns(self, which: VectorName) -> Mapping[str, Sequence[Any]]:
        """Return the columns that the caller chose for a vector, by member."""
        return (self.action_columns if which == "action" else self.state_columns) or {}


def _canonical_weights(given: Any) -> str | dict[str, str] | None:
    """Return ``sample_weights`` in its JSON form; raise ArgumentError if it is no column and no mapping to columns."""
    found = dict(given) if isinstance(given, Mapping) else given
    texts = [*found, *found.values()] if isinstance(found, dict) else [found]
    if given is not None and not all(isinstance(each, str) and each for each in texts):
        raise ArgumentError(f"sample_weights={given!r:.100}; expected a column, or a mapping of members to columns")
    return found or None
