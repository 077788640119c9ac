"""Columns on request, found in the tables of real datasets and of tables made for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream.base.errors import ArgumentError
from stream.batch.columns import find_column
from stream.format.catalog import Catalog
from stream.format.index import SplitIndex, open_index
from stream.format.names import TableKind
from stream.format.table import Column, Table, Texts

NAMES = ["bridge", "kuka", "rt1"]
TEXT = Column(None, None, 0, False, None, Texts(1, 0, 8), ())
LIST = Column(None, None, 0, False, None, None, ())


@pytest.fixture
def splits(oxe_root: Path) -> list[SplitIndex]:
    """Return the training split of three datasets."""
    catalog = Catalog(oxe_root)
    return [open_index(catalog.open(name), "train", member=number) for number, name in enumerate(NAMES)]


BITS = Column("|u1", None, 0, True, None, None, ())


def number(dtype: str, width: int | None = None) -> Column:
    return Column(np.dtype(dtype).str, width, 0, False, None, None, ())


def made(splits: list[SplitIndex], *columns: dict[str, Column]) -> list[SplitIndex]:
    """Return splits of members with these columns of steps."""
    return [
        replace(split, steps=Table("", 0, column_name)) for split, column_name in zip(splits, columns, strict=False)
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("num_steps", "episodes"),
        ("episodes.language", "episodes"),
        ("step", "steps"),
        ("records.step", "records"),
        ("num_bytes", "records"),
        ("language", "steps"),
        ("steps.language", "steps"),
    ],
)
def test_a_column_is_looked_for_in_steps_then_episodes_then_records(
    splits: list[SplitIndex], name: str, kind: TableKind
) -> None:
    column = find_column(name, splits, NAMES)
    assert column.name == name
    assert column.column == name.rpartition(".")[2]
    assert column.kinds == (kind,) * 3


@pytest.mark.parametrize(
    ("first", "second", "dtype", "shape"),
    [
        (number("i1"), number("i4"), "<i4", ()),
        (number("f4"), number("f8"), "<f8", ()),
        (number("u1"), number("u1"), "|u1", ()),
        (BITS, BITS, "|b1", ()),
        (BITS, number("u1"), "|u1", ()),
        (BITS, replace(BITS, width=4), "|b1", (4,)),
        (number("i2"), number("f4"), "<f4", ()),
        (number("f4", 3), number("f4", 7), "<f4", (7,)),
        (number("f4"), number("f4", 2), "<f4", (2,)),
        (number("f4", 1), number("f4"), "<f4", (1,)),
    ],
)
def test_members_of_different_types_meet_in_one_that_holds_all(
    splits: list[SplitIndex], first: Column, second: Column, dtype: str, shape: tuple[int, ...]
) -> None:
    column = find_column("a", made(splits, {"a": first}, {"a": second}), NAMES[:2])
    assert column.dtype == dtype
    assert column.shape == shape


def test_texts_have_no_dtype_and_members_may_lack_them(splits: list[SplitIndex]) -> None:
    column = find_column("a", made(splits, {"a": TEXT}, {}, {"a": TEXT}), NAMES)
    assert (column.dtype, column.shape, column.kinds) == (None, (), ("steps", None, "steps"))


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("reward", [{"rewards": number("i4")}, {}], "no dataset of the mixture has 'reward'; did you mean 'rewards'"),
        ("episodes.a", [{"a": number("i4")}, {}], r"no dataset of the mixture has 'episodes\.a'"),
        ("a", [{"a": TEXT}, {"a": number("i4")}], "'a' is text in some datasets and numbers in others"),
        ("a", [{}, {"a": LIST}], "'a' of dataset kuka is a list; numbers and single texts"),
    ],
)
def test_a_column_that_cannot_be_loaded_is_refused(
    splits: list[SplitIndex], name: str, columns: list[Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=f"columns: .*{message}"):
        find_column(name, made(splits, *columns), NAMES[:2])
