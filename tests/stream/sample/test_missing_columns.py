from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stream import Select, load_loader, make_loader
from stream.base.errors import ArgumentError

MIXTURE = {"bridge": 1, "kuka": 2, "rt1": 1}
SUCCESS = [("success", "==", True), ("step", ">", 0)]


@pytest.fixture(params=["pairs", "frames"])
def root(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.getfixturevalue("oxe_root" if request.param == "pairs" else "frames_root")
    return chosen


def test_datasets_that_lack_a_column_are_an_error_that_names_them_and_the_ways_out(root: Path) -> None:
    message = r"no column 'success' in bridge, rt1; on_missing_column='keep' .*'drop' leaves it out"
    with pytest.raises(ArgumentError, match=message):
        make_loader(root, MIXTURE, batch_size=4, select=Select(where=SUCCESS))


@pytest.mark.parametrize("level", ["argument", "member", "member alone"])
def test_missing_keep_applies_the_other_conditions_alone(root: Path, level: str) -> None:
    select: Any = Select(on_missing_column="keep", where=SUCCESS if level == "argument" else None)
    mixture: Any = MIXTURE
    if level != "argument":
        own: dict[str, Any] = {"where": SUCCESS}
        if level == "member alone":
            select, own["on_missing_column"] = Select(), "keep"
        mixture = {name: {"weight": weight, "select": own} for name, weight in MIXTURE.items()}
    loader = make_loader(root, mixture, batch_size=4, select=select)
    plain = make_loader(
        root,
        MIXTURE,
        batch_size=4,
        select=Select(where={"kuka": SUCCESS, **dict.fromkeys(["bridge", "rt1"], SUCCESS[1:])}),
    )
    assert loader.sizes == plain.sizes and loader.weights == plain.weights
    assert (
        loader.sizes["kuka"] < make_loader(root, MIXTURE, batch_size=4, select=Select(where=SUCCESS[1:])).sizes["kuka"]
    )
    assert plain.step_of(loader.state_at(5)) == 5


def test_missing_drop_leaves_the_datasets_out_and_what_is_said_of_them(root: Path, tmp_path: Path) -> None:
    loader = make_loader(root, MIXTURE, batch_size=4, select=Select(where=SUCCESS, on_missing_column="drop"))
    alone = make_loader(root, {"kuka": 2}, batch_size=4, select=Select(where=SUCCESS))
    assert (loader.weights, loader.sizes) == ({"kuka": 1.0}, alone.sizes)
    loader = make_loader(
        root,
        MIXTURE,
        batch_size=4,
        select=Select(where={"kuka": SUCCESS, "bridge": SUCCESS}, on_missing_column="drop"),
        sample_weights={"rt1": "step", "bridge": "step"},
    )
    assert loader.dataset_names == ("kuka", "rt1")
    loader.save(tmp_path / "loader.json")
    reloaded = load_loader(tmp_path / "loader.json")
    assert reloaded.dataset_names == ("kuka", "rt1")
    assert reloaded.step_of(loader.state_at(3)) == 3
    with pytest.raises(ArgumentError, match="where: no member 'rt2'"):
        make_loader(
            root,
            MIXTURE,
            batch_size=4,
            select=Select(where={"kuka": SUCCESS, "rt2": SUCCESS}, on_missing_column="drop"),
        )


@pytest.mark.parametrize("missing", ["error", "keep", "drop"])
def test_a_column_that_no_dataset_has_is_an_error_whatever_is_missing(root: Path, missing: Any) -> None:
    with pytest.raises(ArgumentError, match=r"no column 'steps.sucess' in bridge, kuka, rt1; did you mean 'success'"):
        make_loader(
            root, MIXTURE, batch_size=4, select=Select(where=[("steps.sucess", "==", True)], on_missing_column=missing)
        )


def test_missing_drop_that_leaves_nothing_is_an_error(root: Path) -> None:
    where = [("success", "==", True), ("action/open_gripper", "==", True)]
    with pytest.raises(
        ArgumentError, match=r"on_missing_column='drop' leaves no dataset: each lacks one .* columns .*success"
    ):
        make_loader(root, ["bridge", "kuka"], batch_size=4, select=Select(where=where, on_missing_column="drop"))
    wrong: Any = "kept"
    with pytest.raises(ArgumentError, match="on_missing_column='kept'; expected one of 'error', 'keep', 'drop'"):
        make_loader(root, MIXTURE, batch_size=4, select=Select(on_missing_column=wrong))
