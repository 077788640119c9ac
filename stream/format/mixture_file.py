"""Mixtures as YAML files and mappings describe them: members, their weights and choices, and schedules of weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from stream.base.configs import Entry
from stream.base.errors import closest

_BOUND = r"-?[0-9][0-9_]*(\.[0-9]+)?(%|shard)?"
_TERM = rf"\s*[A-Za-z0-9_-]+(\[({_BOUND})?(:({_BOUND})?)?\])?\s*"
SplitExpression = Annotated[str, Field(pattern=rf"^{_TERM}(\+{_TERM})*$")]
OFFSET = re.compile(r"[0-9]{1,9}|([0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9})\s*s")
Text = Annotated[str, Field(min_length=1)]
MAX_PHASES = 100
"""Largest number of phases; each takes 6 MB while a loader is open."""


class SizePower(Entry):
    """A weight of ``factor * size ** size_power``, with the size in samples: power 1 is by size, 0 is equal."""

    size_power: Annotated[float, Field(ge=0, le=4)]
    factor: Annotated[float, Field(gt=0, lt=1e12)] = 1.0


def _plain_number(value: Any) -> Any:
    """Return a number of numpy as Python's own type."""
    return value.item() if hasattr(value, "item") else value


def _read_weight(weight: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(_plain_number(weight))
    except ValidationError:
        power = "{size_power: p, factor: f} with p from 0 (all equal) to 1 (by size) and beyond"
        expected = f"expected a finite number >= 0 (0 leaves the member out), 'size', or {power}"
        raise ValueError(f"found {weight!r:.80}; {expected}") from None


def _read_offset(offset: Any) -> Any:
    if not OFFSET.fullmatch(str(offset).strip()):
        raise ValueError(f"offset {offset!r:.80} is neither a number of steps (5) nor seconds (0.6s)")
    return int(offset) if str(offset).isdecimal() else offset


Offset = Annotated[int | str, BeforeValidator(_read_offset)]
"""Distance of a pair in steps (5) or seconds (0.6s)."""

_Number = Annotated[float, Field(strict=True, ge=0, lt=1e15, allow_inf_nan=False)]
Weight = float | Literal["size"] | SizePower
_Weight = Annotated[_Number | Literal["size"] | SizePower, WrapValidator(_read_weight)]


class MemberEntry(Entry):
    """A member of a mixture.

    Attributes:
        dataset: Name of the dataset; None if it is the name of the member.
        root: Converted root of the dataset; None for the root of the mixture.
        weight: Weight relative to the other members.
        offset: Distance of a pair in steps (5) or seconds (0.6s) for the conversion; None for the dataset's default.
        splits: Split expression in TFDS's grammar of each role.
        split: Split expression for every role.
        select: Choices among the samples, with the keys of ``stream.Select``.
        frames, action, state: What differs from the other members, with the keys of ``stream.Frames`` and
            ``stream.Vector``.
    """

    dataset: Text | None = None
    root: Text | None = None
    weight: _Weight = 1.0
    offset: Offset | None = None
    splits: dict[Text, SplitExpression] = Field(default_factory=lambda: {"train": "train[:90%]", "val": "train[90%:]"})
    split: SplitExpression | None = None
    select: Any = None
    frames: Any = None
    action: Any = None
    state: Any = None

    @model_validator(mode="before")
    @classmethod
    def _check_choices(cls, content: Any) -> Any:
        """Refuse choices that are not in ``select``, with the form to write."""
        forms = {"filters": "where", "episodes": "episodes", "keep_ranges": "keep_ranges"}
        for key, field_name in forms.items():
            if isinstance(content, Mapping) and key in content:
                raise ValueError(f"{key}: write select: {{{field_name}: ...}}")
        return content

    def split_of(self, role: str) -> str | None:
        """Return the split expression of a role, None if the member does not have it."""
        return self.split or self.splits.get(role)


class Phase(Entry):
    """Weights of the members (0 if not named) before step ``until``, None for the last phase of a schedule."""

    until: Annotated[Annotated[int, Field(ge=1, strict=True)] | None, BeforeValidator(_plain_number)] = None
    weights: Annotated[dict[Text, _Weight], Field(min_length=1)]


class MixtureFile(Entry):
    """A mixture: members by name, and phases of their weights, none if the members' own weights hold for all steps."""

    description: str = ""
    members: Annotated[dict[Text, MemberEntry], Field(min_length=1)]
    schedule: Annotated[tuple[Phase, ...], Field(max_length=MAX_PHASES)] = ()

    @model_validator(mode="before")
    @classmethod
    def _read_bare_weights(cls, content: Any) -> Any:
        """Read a bare weight as ``{weight: ...}``."""
        members = content.get("members") if isinstance(content, dict) else None
        if not isinstance(members, Mapping):
            return content
        return {**content, "members": {str(name): member_content(entry) for name, entry in members.items()}}

    @model_validator(mode="after")
    def _check_schedule(self) -> MixtureFile:
        phase_ends = [phase.until for phase in self.schedule]
        previous = 0
        for number, phase_end in enumerate(phase_ends, 1):
            is_last = number == len(phase_ends)
            if is_last != (phase_end is None) or (phase_end is not None and phase_end <= previous):
                problem = f"schedule: phase {number} ends at step {phase_end}, the one before at {previous}"
                raise ValueError(f"{problem}; `until` grows from phase to phase, and only the last phase has none")
            previous = phase_end or previous
        for member in (member for phase in self.schedule for member in phase.weights):
            if member not in self.members:
                raise ValueError(f"schedule: no member {member!r}; {closest(member, self.members, noun='members')}")
        for number, weights in enumerate(self.phase_weights, 1):
            if all(weight == 0 for weight in weights.values()):
                context = f"schedule: phase {number}: " if self.schedule else ""
                raise ValueError(f"{context}no member has a weight above 0")
        return self

    @property
    def phase_weights(self) -> list[dict[str, Weight]]:
        """Weight of each member in each phase."""
        if not self.schedule:
            return [{name: entry.weight for name, entry in self.members.items()}]
        return [{name: phase.weights.get(name, 0.0) for name in self.members} for phase in self.schedule]

    @property
    def until(self) -> tuple[int, ...]:
        """Step at which each phase but the last ends."""
        return tuple(phase.until for phase in self.schedule if phase.until is not None)


def member_content(member_entry: Any) -> Any:
    """Return the content of a member; a weight alone stands for ``{weight: ...}``.

    >>> member_content(2), member_content({"size_power": 0.5}), member_content({"root": "/data/mine"})
    ({'weight': 2}, {'weight': {'size_power': 0.5}}, {'root': '/data/mine'})
    """
    is_weight = not isinstance(member_entry, Mapping) or "size_power" in member_entry
    return {"weight": member_entry} if is_weight else dict(member_entry)


def in_folder(entry: MemberEntry, config_folder: Path) -> MemberEntry:
    """Return a member whose relative paths count from the folder of its file."""
    update: dict[str, Any] = {}
    if entry.root is not None:
        update["root"] = str(config_folder / entry.root)
    if isinstance(entry.select, Mapping):
        is_path = {"episodes", "keep_ranges"}.__contains__
        update["select"] = {
            key: str(config_folder / value) if is_path(key) and isinstance(value, str) else value
            for key, value in entry.select.items()
        }
    return entry.model_copy(update=update)
