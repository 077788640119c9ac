"""Arguments of ``make_loader`` that define the samples and the content of their batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.base.plain_values import drop_names
from stream.base.value_object import ValueObject, known_fields
from stream.format.names import VectorName
from stream.loader.state import OFF
from stream.sample.frames import Frames
from stream.sample.select import Select
from stream.sample.vector import SPACES, Vector

_MOST = 1_000_000
_ABSENT_FROM_CONTENT = {"decode", "on_missing_camera", "on_unmapped", "on_unknown_units", "slots"}
"""Fields that do not change batches, or whose effect on them other fields have."""
FramesLike = Frames | Sequence[int | str] | Mapping[str, Any] | None
"""Frames: the object, its steps, a mapping of its fields, or None for none in the batches."""
VectorLike = Vector | int | str | Mapping[str, Any] | None
"""An action or state: the object, its steps, a mapping of its fields, or None for none in the batches."""


@known_fields
@dataclass(frozen=True, repr=False, kw_only=True)
class SampleSpec(ValueObject):
    """Arguments of ``make_loader`` that define the samples.

    Raises:
        ArgumentError: An argument is wrong.
    """

    positional: ClassVar[str] = ""

    seed: int = 0
    shuffle: str = "global"
    num_epochs: int | None = None
    sample_weights: str | Mapping[str, str] | None = None
    samples_per_episode: int = 0
    frames: Frames | None = Frames()
    action: Vector | None = Vector()
    state: Vector | None = Vector()
    language: str | Sequence[str] | None = "language"
    columns: Sequence[str] = ()
    select: Select = Select()

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.frames is not None:
            self._set(frames=Frames.of("frames", self.frames))
        elif any(vector.between for vector in self.vectors.values() if isinstance(vector, Vector)):
            raise ArgumentError("action=Vector(between='frames') with frames=None: there are no frames; give them")
        self._set(select=Select.of("select", self.select))
        for vector_name, spaces in SPACES.items():
            if (value := getattr(self, vector_name)) is not None:
                vector = Vector.of(vector_name, value)
                self._set(**{vector_name: vector})
                if vector.space not in (None, *spaces):
                    raise ArgumentError(
                        f"{vector_name}=Vector(space={vector.space!r}): expected None or one of {', '.join(spaces)}"
                    )
        state = self.vectors.get("state")
        if state is not None and state.reduce is not None:
            raise ArgumentError(f"state=Vector(reduce={state.reduce!r}): only the action has a reduction")
        if state is not None and state.per_step and state.steps in (None, 1):
            raise ArgumentError("state=Vector(per_step=True): a state of one step has no dimension of steps")
        if state is not None and state.between is not None:
            raise ArgumentError("state=Vector(between='frames'): only the action has intervals between frames")
        if state is not None and state.has_delay:
            raise ArgumentError(f"state=Vector(max_delay={state.max_delay!r}): only the action has a delay")
        if self.action is not None and self.action.dropout:
            raise ArgumentError(
                f"action=Vector(dropout={self.action.dropout}): only the state is dropped; frames before t are by "
                "Frames(history_dropout=...)"
            )
        if not isinstance(self.columns, list | tuple) or not all(isinstance(column, str) for column in self.columns):
            raise ArgumentError(f"columns={self.columns!r:.100}; expected a list of column names")
        self._set(columns=tuple(self.columns), language=_canonical_language(self.language))
        self._set(sample_weights=_canonical_weights(self.sample_weights))
        if self.sample_weights and self.samples_per_episode:
            raise ArgumentError(
                f"samples_per_episode={self.samples_per_episode} with sample_weights: the first draws evenly from the "
                "episodes, the second by weight; leave one of them out"
            )

    def _check_numbers(self) -> None:
        self._set(seed=check_whole_number("seed", self.seed, least=None))
        for argument, least in (("samples_per_episode", 0), ("num_epochs", 1)):
            if (value := getattr(self, argument)) is None and argument == "num_epochs":
                continue
            number = check_whole_number(argument, value, least=least)
            if number > _MOST:
                raise ArgumentError(f"{argument}={number}; at most {_MOST:,}")
            self._set(**{argument: number})

    @property
    def vectors(self) -> dict[VectorName, Vector]:
        """Vectors of a batch, by name."""
        vectors: dict[VectorName, Vector | None] = {"action": self.action, "state": self.state}
        return {vector_name: vector for vector_name, vector in vectors.items() if vector is not None}

    @property
    def languages(self) -> list[str]:
        """Columns of texts to draw from."""
        return [self.language] if isinstance(self.language, str) else list(self.language or ())

    @property
    def content(self) -> dict[str, Any]:
        """Fields that define the content of batches, in their JSON form, by a name such as ``frames.size``."""
        objects: dict[Any, Any] = {"frames": self.frames, **self.vectors}
        content: dict[str, Any] = dict.fromkeys(SPACES)
        for name, vector in self.vectors.items():
            content[name] = "Vector(...)" if vector.slots is None else f"Vector(slots={vector.slots!r}, ...)"
        if self.frames is None:
            content["frames"] = objects.pop("frames")
        for name, value in objects.items():
            for field in value.names():
                has_effect = field not in ("fit", "filter") or value.size is not None
                has_effect &= f"{name}.{field}" not in OFF or getattr(value, field) != 0
                if has_effect and field not in _ABSENT_FROM_CONTENT:
                    field_value = getattr(value, field)
                    if isinstance(field_value, ValueObject):
                        field_value = field_value.to_json()
                    content[f"{name}.{field}"] = list(field_value) if isinstance(field_value, tuple) else field_value
        return {**content, "language": self.language, "columns": list(self.columns)}

    def without(self, members: Collection[str]) -> SampleSpec:
        """Return the spec without its entries for some members."""
        if not members:
            return self
        vectors: dict[str, Any] = {name: vector.without(members) for name, vector in self.vectors.items()}
        weights = drop_names(self.sample_weights, members)
        return replace(self, select=self.select.without(members), sample_weights=weights, **vectors)


def _canonical_language(argument: Any) -> str | list[str] | None:
    """Return ``language`` in its JSON form; or raise ArgumentError."""
    texts = [argument] if isinstance(argument, str) else argument
    if argument is None:
        return None
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ArgumentError(
            f"language={texts!r:.100}; expected a column of texts, a list of them to draw from, or None"
        )
    return argument if isinstance(argument, str) else list(texts)


def _canonical_weights(argument: Any) -> str | dict[str, str] | None:
    """Return ``sample_weights`` in its JSON form; or raise ArgumentError."""
    weights = dict(argument) if isinstance(argument, Mapping) else argument
    names = [*weights, *weights.values()] if isinstance(weights, dict) else [weights]
    if argument is not None and not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(f"sample_weights={argument!r:.100}; expected a column, or a mapping of members to columns")
    return weights or None
