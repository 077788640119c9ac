"""Arguments as plain values: what a user gives as numpy arrays, ranges, sets or generators, as JSON would hold it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from stream.errors import ArgumentError

Scalar = bool | int | float | str
Kind = Literal["true or false", "a number", "a text"]


def plain_scalar(value: Any, *, where: str) -> Scalar:
    """Return a number, text or truth value as Python's own type, whichever library it is of.

    Raises:
        ArgumentError: It is something else, or NaN, which equals nothing.

    >>> plain_scalar(__import__("numpy").int64(3), where="step")
    3
    """
    convert = getattr(value, "item", None) or getattr(value, "as_py", None)
    if callable(convert) and not isinstance(value, Scalar):
        try:
            value = convert()
        except (TypeError, ValueError, RuntimeError):
            raise ArgumentError(f"{where}: {value!r:.60} is not one number or text") from None
    # Subclasses too, such as numpy's float64 and enumerations of texts.
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            value = kind(value)
            if value != value:
                raise ArgumentError(f"{where}: NaN equals nothing; compare with a number")
            return value
    raise ArgumentError(f"{where}: {value!r:.60}; expected a number, a text, or true or false")


def kind_of(value: Scalar) -> Kind:
    """Return which kind of value it is; values of two kinds cannot be compared."""
    if isinstance(value, bool):
        return "true or false"
    return "a text" if isinstance(value, str) else "a number"


def plain_list(values: Any, *, where: str) -> list[Any]:
    """Return the elements of a list, range, set, array or iterator, which is read once.

    Raises:
        ArgumentError: It has no elements to go through, or is a text or a mapping.
    """
    if not isinstance(values, str | bytes | Mapping) and isinstance(values, Iterable):
        as_list = getattr(values, "tolist", None)
        try:
            found = as_list() if callable(as_list) else list(values)
        except TypeError:  # an array of one number, without a list around it
            found = None
        if isinstance(found, list):
            return found
    raise ArgumentError(f"{where}: {values!r:.100}; expected a list of values")


def plain_values(values: Any, *, where: str) -> list[Scalar]:
    """Return the distinct values of a collection, sorted; whole numbers become floats if any number is a float.

    Raises:
        ArgumentError: It is no collection, or its values are of several kinds.

    >>> plain_values((3, 1, 3), where="step"), plain_values({2, 0.5}, where="step")
    ([1, 3], [0.5, 2.0])
    """
    found = [plain_scalar(value, where=where) for value in plain_list(values, where=where)]
    kinds = sorted({kind_of(value) for value in found})
    if len(kinds) > 1:
        raise ArgumentError(f"{where}: {' and '.join(kinds)} in one list; expected values of one type")
    if any(isinstance(value, float) for value in found):
        found = [_as_float(value, where=where) for value in found]
    return sorted(set(found))


def plain_json(value: Any, *, where: str) -> Any:
    """Return mappings, sequences and numbers as dicts, lists and Python's own numbers, at any depth.

    Raises:
        ArgumentError: A value that JSON does not hold, or a set, whose order is not defined.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_json(inner, where=where) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        raise ArgumentError(f"{where}: {value!r:.60} is a set, which has no order; give a list")
    if isinstance(value, Iterable) and getattr(value, "shape", None) != ():
        return [plain_json(inner, where=where) for inner in plain_list(value, where=where)]
    return plain_scalar(value, where=where)


def canonical_columns(name: str, columns: Any) -> dict[str, list[Any]] | None:
    """Return ``action_columns`` or ``state_columns`` as JSON holds it: ranges and arrays of indices become lists.

    Args:
        name: Name of the argument, for messages.
        columns: None, or a mapping of dataset names to lists of columns, as ``make_loader`` takes it.

    Raises:
        ArgumentError: It is something else.

    >>> canonical_columns("action_columns", {"bridge": [("state", range(3))]})
    {'bridge': [['state', [0, 1, 2]]]}
    """
    if columns is None:
        return None
    if not isinstance(columns, Mapping):
        raise ArgumentError(f"{name}={columns!r:.100}; expected a mapping of dataset names to lists of columns")
    chosen = {str(dataset): plain_json(value, where=f"{name}[{dataset!r}]") for dataset, value in columns.items()}
    return {dataset: value for dataset, value in chosen.items() if value is not None}


def _as_float(value: Any, *, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number != value:
        raise ArgumentError(f"{where}: {value!r:.60} is not exact as a float, and others in the list are floats")
    return number
