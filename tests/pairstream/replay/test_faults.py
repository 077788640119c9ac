"""Bad values of a batch are found and named: NaN, infinity, and numbers far from those of the dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pairstream.replay.command import main
from pairstream.replay.faults import find_faults, find_nonfinite
from stream import Vector, digest, make_loader
from stream.loader.open_mixture import OpenMixture
from stream.order.reference import SampleRef
from tests.stream.transforms import Halve


@pytest.fixture
def made_batch(oxe_root: Path) -> tuple[dict[str, Any], list[SampleRef], OpenMixture]:
    loader = make_loader(oxe_root, ["bridge", "rt1"], batch_size=6)
    return loader.batch_at(0), loader.describe(0), loader.data


def test_bad_values_are_named_with_dimension_step_and_range(made_batch: Any) -> None:
    batch, refs, data = made_batch
    names = data.spec.actions[data.names.index(refs[4].dataset)].names
    batch["action"][~batch["action_mask"]] = np.nan
    # Padding is no fault.
    assert find_faults(*made_batch) == {}
    batch["action"][4, 1, 2], batch["action"][5, 0, 0], batch["state"][3, 0] = np.nan, np.inf, 1e6
    faults = find_faults(*made_batch)
    assert faults.keys() == {3, 4, 5}
    assert faults[4] == [f"action: NaN in {names[2]} at step {refs[4].step + 1}"]
    assert faults[5][0].startswith("action: infinite in ")
    assert "is 1e+06, 98 % of the dataset is from " in faults[3][0]


@pytest.mark.parametrize(("reduce", "place", "distance"), [(None, (1, 2), 3), ("first", (1,), 1)])
def test_bad_actions_between_frames_are_named_with_their_step(
    reduce: Any, place: tuple[int, ...], distance: int, frames_root: Path
) -> None:
    actions = Vector(between="frames", reduce=reduce)
    loader = make_loader(frames_root, "bridge,kuka", batch_size=6, frames=[0, 1, 4], action=actions)
    batch, refs = loader.batch_at(0), loader.describe(0)
    assert find_faults(batch, refs, loader.data) == {}
    name = loader.action_names[refs[2].dataset][1]
    batch["action"][(2, *place, 1)] = np.nan
    faults = find_faults(batch, refs, loader.data)
    assert faults == {2: [f"action: NaN in {name} at step {refs[2].step + distance}"]}


def test_what_transforms_give_is_checked_under_any_key() -> None:
    nested = {"a": {"b": np.array([[1.0], [np.nan]])}, "texts": ["x", "y"], "count": np.array([1, 2])}
    assert find_nonfinite(nested, 2) == {1: ["a/b: 1 values are NaN or infinite"]}


TRANSFORMS = """
import numpy as np
from tests.stream.transforms import Halve

class Spoil:
    def map(self, element):
        element["action"][2] = np.nan
        return element

halve = Halve()
spoiled = lambda data: [halve, Spoil()]
wrong = 3
"""


@pytest.fixture
def run(oxe_root: Path, tmp_path: Path) -> Path:
    make_loader(oxe_root, "bridge", batch_size=4).save(tmp_path / "loader.json")
    (tmp_path / "mine.py").write_text(TRANSFORMS)
    return tmp_path / "loader.json"


def replay(run: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    code = main(["--loader", str(run), "--step", "3", "--json", *more])
    return code, *capsys.readouterr()


def test_transforms_of_a_file_are_applied_and_their_nan_is_marked(
    run: Path, oxe_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, plain, _ = replay(run, capsys)
    code, out, _ = replay(run, capsys, "--transforms", f"{run.parent / 'mine.py'}:halve")
    trained = make_loader(oxe_root, "bridge", batch_size=4, transforms=[Halve()]).batch_at(3)
    assert (code, json.loads(out)["digest"]) == (0, digest(trained))
    assert json.loads(plain)["digest"] != digest(trained)
    _, out, _ = replay(run, capsys, "--transforms", f"{run.parent / 'mine.py'}:spoiled")
    faults = [row["faults"] for row in json.loads(out)["rows"]]
    assert [bool(fault) for fault in faults] == [False, False, True, False]
    assert faults[2][0].startswith("after the transforms: action: ")


@pytest.mark.parametrize("name", ["none.such:x", "json:nothing", "nonsense", "{folder}/mine.py:wrong", "/none.py:x"])
def test_transforms_that_cannot_be_had_are_one_line(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = replay(run, capsys, "--transforms", name.format(folder=run.parent))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "transforms" in err
