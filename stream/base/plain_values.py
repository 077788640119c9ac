"""Conversion of arguments, such as numpy arrays, ranges, sets and generators, to values that JSON can hold."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stream.base.errors import ArgumentError

Scalar = bool | int | float | str


def plain_scalar(value: Any, *, context: str) -> Scalar:
    """Return a number, text or truth value of any library as Python's own type.

    Raises ArgumentError for anything else, and for NaN, which equals nothing.

    >>> plain_scalar(__import__("numpy").int64(3), context="step")
    3
    """
    convert = getattr(value, "item", None) or getattr(value, "as_py", None)
    if convert is not None:
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            value = convert()
    # Also converts subclasses, such as numpy's float64 and enumerations of texts.
    for scalar_type in (bool, int, float, str):
        if isinstance(value, scalar_type):
            value = scalar_type(value)
            if value != value:
                raise ArgumentError(f"{context}: NaN equals nothing; compare with a number")
            return value
    raise ArgumentError(f"{context}: {value!r:.60}; expected a number, a text, or true or false")


def kind_of(value: Scalar) -> str:
    """Return the kind of a value; values of two kinds cannot be compared."""
    if isinstance(value, bool):
        return "true or false"
    return "a text" if isinstance(value, str) else "a number"


def plain_values(values: Any, *, context: str) -> list[Scalar]:
    """Return the distinct values of a collection or iterator, sorted; all are floats if any is.

    Raises ArgumentError for anything else, and for values of several kinds.

    >>> plain_values((3, 1, 3), context="step"), plain_values({2, 0.5}, context="step")
    ([1, 3], [0.5, 2.0])
    """
    try:
        value_list = list(values)
    except TypeError:
        value_list = None
    if value_list is None or isinstance(values, str | bytes | Mapping):
        raise ArgumentError(f"{context}: {values!r:.100}; expected a list of values")
    scalars = [plain_scalar(value, context=context) for value in value_list]
    kinds = sorted({kind_of(value) for value in scalars})
    if len(kinds) > 1:
        raise ArgumentError(f"{context}: {' and '.join(kinds)} in one list; expected values of one type")
    if any(isinstance(value, float) for value in scalars):
        scalars = [float(value) for value in scalars]
    return sorted(set(scalars))


def canonical_columns(argument: str, columns: Any) -> Any:
    """Return columns of a vector in JSON form, a list or a dict of lists; ranges and arrays of indices become lists.

    Raises:
        ArgumentError: The argument is neither None, nor a list, nor a mapping of dataset names to lists of columns.

    >>> canonical_columns("columns", {"bridge": [("state", range(3))]})
    {'bridge': [['state', [0, 1, 2]]]}
    """
    if columns is None:
        return None
    if not isinstance(columns, Mapping | list | tuple):
        raise ArgumentError(
            f"{argument}={columns!r:.100}; expected a list of columns, or a mapping of dataset names to such lists"
        )
    content = _as_json(argument, columns)
    if isinstance(content, list):
        return content
    return {dataset: selection for dataset, selection in content.items() if selection is not None}


def canonical_choice(argument: str, value: Any) -> Any:
    """Return ``episodes`` or ``keep_ranges`` in JSON form: arrays and tuples become lists, paths absolute texts."""
    if value is None:
        return None
    # A loader.json is opened in other folders too.
    if isinstance(value, str | Path):
        return os.path.abspath(value)
    if isinstance(value, list | tuple):
        return _as_json(argument, value)
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{argument}={value!r:.100}; expected a list, a mapping of members, or a JSON file of one")
    return {
        key: os.path.abspath(choice) if isinstance(choice, str) else choice
        for key, choice in _as_json(argument, value).items()
    }


def drop_names(value: Any, names: Collection[str]) -> Any:
    """Return an argument by name without some names; None if nothing remains. Other values are returned unchanged."""
    if not isinstance(value, Mapping):
        return value
    return {name: choice for name, choice in value.items() if name not in names} or None


def _as_json(argument: str, value: Any) -> Any:
    try:
        json_values = json.loads(
            json.dumps(dict(value) if isinstance(value, Mapping) else list(value), default=_plain, allow_nan=False)
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{argument}={value!r:.100}: {error}; expected names and lists of numbers") from None
    return json_values


def _plain(value: Any) -> Any:
    """Return a JSON value for a value of another type."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset | bytes):
        raise TypeError(f"{value!r:.60} has no order or is no text")
    return value.tolist() if hasattr(value, "tolist") else list(value)
