from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from stream import ArgumentError, Vector, load_loader, make_loader
from stream.base.plain_values import canonical_columns, plain_scalar, plain_values


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(3), 3),
        (torch.tensor(3), 3),
        (pa.scalar("a"), "a"),
        (Colour.RED, "red"),
        (10**30, 10**30),
    ],
)
def test_a_scalar_of_any_library_is_pythons_own(value: Any, expected: Any) -> None:
    scalar = plain_scalar(value, context="x")
    assert scalar == expected
    assert type(scalar) is type(expected)


@pytest.mark.parametrize("value", [None, b"a", [1], {}, object(), np.arange(2), np.datetime64("2024-01-01"), np.nan])
def test_what_is_no_scalar_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="x: "):
        plain_scalar(value, context="x")


@pytest.mark.parametrize("values", [np.array([[1, 2]]), np.array(1), torch.tensor(1), "ab", b"ab", {1: 2}, 5, None])
def test_what_is_no_list_of_scalars_is_refused(values: Any) -> None:
    with pytest.raises(ArgumentError, match="x: "):
        plain_values(values, context="x")


def test_columns_of_another_form_are_refused() -> None:
    for columns in (5, "action", {("action", (0,))}):
        with pytest.raises(ArgumentError, match=r"columns=.*expected a list of columns, or a mapping"):
            canonical_columns("columns", columns)
    for value in ({"a": {1, 2}}, [b"a"], [np.nan], [object()]):
        for chosen in ({"bridge": value}, [value]):
            with pytest.raises(ArgumentError, match=r"columns=.*expected names and lists of numbers"):
                canonical_columns("columns", chosen)
    assert canonical_columns("columns", None) is None
    assert canonical_columns("columns", {"bridge": None}) == {}
    assert canonical_columns("columns", [("action", range(1))]) == [["action", [0]]]


@pytest.mark.parametrize("kind", ["range", "numpy", "tuple", "generator"])
def test_a_loader_with_any_indices_of_columns_is_saved_and_goes_on(oxe_root: Path, tmp_path: Path, kind: str) -> None:
    indices: dict[str, Any] = {"range": range(3), "numpy": np.arange(3), "tuple": (0, 1, 2)}
    select = indices.get(kind, (number for number in range(3)))
    chosen = {"bridge": (("observation/state", select),)}
    loader = make_loader(oxe_root, "bridge", batch_size=4, state=Vector(columns=chosen))
    loader.save(tmp_path / "loader.json")
    saved = json.loads((tmp_path / "loader.json").read_text())["sample"]
    assert saved["state"]["columns"] == {"bridge": [["observation/state", [0, 1, 2]]]}
    restored = load_loader(tmp_path / "loader.json")
    np.testing.assert_array_equal(restored.batch_at(3)["state"], loader.batch_at(3)["state"])
    assert restored.batch_at(3)["state"].shape == (4, 3)


def test_a_relative_root_holds_when_the_current_folder_changes(
    oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(oxe_root.parent)
    loader = make_loader(oxe_root.name, "bridge", batch_size=4, num_workers=1)
    loader.save(tmp_path / "loader.json")
    monkeypatch.chdir(tmp_path)
    loader.save("again.json")
    expected = make_loader(oxe_root, "bridge", batch_size=4).batch_at(0)["frames"]
    iterator = iter(loader)
    np.testing.assert_array_equal(next(iterator)["frames"], expected)
    iterator.close()
    for name in ("loader.json", "again.json"):
        np.testing.assert_array_equal(load_loader(name).batch_at(0)["frames"], expected)
