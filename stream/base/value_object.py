"""Frozen objects that describe a part of a call, such as ``stream.Frames``: short forms, JSON, and a ``repr``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, ClassVar, Self, TypeVar

from stream.base.arguments import check_names
from stream.base.errors import ArgumentError

_Class = TypeVar("_Class", bound=type)


class ValueObject:
    """Base of the frozen dataclasses that ``make_loader`` takes.

    Fields are keyword arguments but for ``positional``. The ``repr`` has the fields without their defaults, and can be
    pasted into a program.
    """

    positional: ClassVar[str] = ""
    """Field that the class takes without its name."""
    named: ClassVar[frozenset[str]] = frozenset()
    """Fields that a mapping named, of an object that ``of`` made from it: a member of a mixture may name a default."""

    @classmethod
    def of(cls, argument: str, value: Any) -> Self:
        """Return the object of an argument: the object itself, a mapping of its fields, or its positional field.

        Raises:
            ArgumentError: A mapping has an unknown key, or a field is wrong.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, ValueObject):
            raise ArgumentError(f"{argument}={value!r:.100}; expected stream.{cls.__name__}(...)")
        content: Any = value
        if not isinstance(value, Mapping):
            content = {cls.positional: value} if cls.positional else None
        if content is None or value is None:
            raise ArgumentError(f"{argument}={value!r:.100}; expected stream.{cls.__name__}(...), or a mapping of it")
        try:
            made = cls(**{str(field): field_value for field, field_value in content.items()})
            made._set(named=frozenset(map(str, content)))
            return made
        except ArgumentError as error:
            raise ArgumentError(f"{argument}: {error}") from None

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the fields."""
        return [field.name for field in _fields(cls)]

    def __repr__(self) -> str:
        arguments = [
            repr(value) if name == self.positional else f"{name}={value!r}" for name, value in self.chosen().items()
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def chosen(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, or that a mapping named."""
        return {
            field.name: value
            for field in _fields(self)
            if (value := getattr(self, field.name)) != _default_of(field) or field.name in self.named
        }

    def to_json(self) -> dict[str, Any]:
        """Return the mapping that ``of`` takes, of values that JSON can hold."""
        return {
            name: value.to_json() if isinstance(value, ValueObject) else value for name, value in self.chosen().items()
        }

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def known_fields(cls: _Class) -> _Class:
    """Make a dataclass refuse an unknown keyword argument with the closest name of its fields."""
    initialise = cls.__init__  # type: ignore[misc]
    names = [field.name for field in fields(cls)]

    @wraps(initialise)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        check_names(kwargs, names, owner=f"stream.{cls.__name__}")
        if len(args) > bool(cls.positional):  # type: ignore[attr-defined]
            raise ArgumentError(f"stream.{cls.__name__}{args!r:.80}: expected names of arguments: {', '.join(names)}")
        initialise(self, *args, **kwargs)

    cls.__init__ = init  # type: ignore[misc]
    return cls


def _fields(value: Any) -> tuple[Field[Any], ...]:
    return fields(value)


def _default_of(field: Field[Any]) -> Any:
    return field.default if field.default is not MISSING else None
