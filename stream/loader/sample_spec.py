"""Arguments of ``make_loader`` that define the samples and the content of their batches."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stream.base.arguments import check_whole_number
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

_NUMBER_LIMITS: dict[str, tuple[int | None, int | None]] = {
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
    **{f"{vector_name}_space": (None, *spaces) for vector_name, spaces in SPACES.items()},
    "unmapped": UNMAPPED,
    "unknown_units": UNKNOWN_UNITS,
    "missing": MISSING,
}
_BY_MEMBER = ("filters", "episodes", "keep_ranges", "sample_weights", "action_columns", "state_columns")
"""Arguments that may be mappings by member."""
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
        self._check_numbers()
        self._check_choices()
        self._check_columns()
        self._check_action()
        self._set(
            cameras=canonical_cameras(self.cameras),
            image_size=canonical_size(self.image_size),
            frames=canonical_frames(self.frames),
            filters=canonical_filters(self.filters),
            episodes=canonical_choice("episodes", self.episodes),
            keep_ranges=canonical_choice("keep_ranges", self.keep_ranges),
        )
        self._check_language()
        self._set(sample_weights=_canonical_weights(self.sample_weights))
        if self.sample_weights and self.samples_per_episode:
            raise ArgumentError(
                f"samples_per_episode={self.samples_per_episode} with sample_weights: the first draws evenly from the "
                "episodes, the second by weight; leave one of them out"
            )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        for argument, (minimum, maximum) in _NUMBER_LIMITS.items():
            if argument == "passes" and self.passes is None:
                continue
            number = check_whole_number(argument, getattr(self, argument), least=minimum)
            if maximum is not None and number > maximum:
                raise ArgumentError(f"{argument}={number}; at most {maximum:,}")
            self._set(**{argument: number})
        for argument, minimum in STEPS.items():
            if argument != "horizon" or self.horizon is not None:
                self._set(
                    **{argument: canonical_steps(argument, getattr(self, argument), least=minimum, most=MOST_STEPS)}
                )

    def _check_choices(self) -> None:
        for argument, choices in _CHOICES.items():
            if getattr(self, argument) not in choices:
                raise ArgumentError(
                    f"{argument}={getattr(self, argument)!r}; expected one of {', '.join(map(str, choices))}"
                )

    def _check_columns(self) -> None:
        if not isinstance(self.columns, list | tuple) or not all(isinstance(column, str) for column in self.columns):
            raise ArgumentError(f"columns={self.columns!r:.100}; expected a list of column names")
        if self.columns and self.metadata != "full":
            raise ArgumentError(
                f"columns={self.columns!r:.100}: with metadata={self.metadata!r} a batch has none of them"
            )
        self._set(columns=tuple(self.columns))
        for argument in ("action_columns", "state_columns"):
            self._set(**{argument: canonical_columns(argument, getattr(self, argument))})

    def _check_action(self) -> None:
        if self.action != "window" and self.action_from:
            raise ArgumentError(
                f"action_from={self.action_from} with action={self.action!r}; only action='window' starts at another "
                "step than t"
            )
        if self.action == "sum" and self.action_space not in (None, "eef_delta"):
            raise ArgumentError(
                f"action='sum' with action_space={self.action_space!r}, whose values are not displacements in every "
                "dataset; take action_space='eef_delta'"
            )

    def _check_language(self) -> None:
        texts = [self.language] if isinstance(self.language, str) else self.language
        if (
            not isinstance(texts, list | tuple)
            or not texts
            or not all(isinstance(text, str) and text for text in texts)
        ):
            raise ArgumentError(f"language={texts!r:.100}; expected a column of texts, or a list of them to draw from")
        if self.language != "language" and self.metadata != "full":
            raise ArgumentError(f"language={texts!r:.100}: with metadata={self.metadata!r} a batch has no language")
        self._set(language=self.language if isinstance(self.language, str) else list(texts))

    @property
    def languages(self) -> list[str]:
        """Columns of texts to draw from."""
        return [self.language] if isinstance(self.language, str) else list(self.language)

    @property
    def chooses_frames(self) -> bool:
        """True if the caller chose frames, cameras or bounds."""
        return self.frames is not None or self.cameras is not None or self.bounds == "clamp"

    @property
    def spaces(self) -> dict[VectorName, SpaceName]:
        """Canonical space of each vector that is loaded in one."""
        chosen_spaces: dict[VectorName, SpaceName | None] = {"action": self.action_space, "state": self.state_space}
        return {vector_name: space for vector_name, space in chosen_spaces.items() if space is not None}

    @property
    def content(self) -> dict[str, Any]:
        """Arguments that define the content of batches, in their JSON form."""
        argument_names = [argument for argument in _CONTENT if self.image_size is not None or argument not in _RESIZING]
        arguments: dict[str, Any] = json.loads(
            json.dumps({argument: getattr(self, argument) for argument in argument_names})
        )
        return arguments

    def without(self, members: Collection[str]) -> SampleSpec:
        """Return the spec without its entries for some members."""
        remaining: dict[str, Any] = {}
        for argument in _BY_MEMBER:
            if isinstance(by_member := getattr(self, argument), Mapping):
                remaining[argument] = {
                    member: value for member, value in by_member.items() if member not in members
                } or None
        return replace(self, **remaining)

    def own_columns(self, vector_name: VectorName) -> Mapping[str, Sequence[Any]]:
        """Return the columns that the caller chose for a vector, by member."""
        return (self.action_columns if vector_name == "action" else self.state_columns) or {}


def _canonical_weights(argument: Any) -> str | dict[str, str] | None:
    """Return ``sample_weights`` in its JSON form; or raise ArgumentError."""
    weights = dict(argument) if isinstance(argument, Mapping) else argument
    names = [*weights, *weights.values()] if isinstance(weights, dict) else [weights]
    if argument is not None and not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(f"sample_weights={argument!r:.100}; expected a column, or a mapping of members to columns")
    return weights or None
