"""Faults of a mapping to canonical spaces are found, each with its dimension and what to do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from convert.findings import Finding
from convert.registry.registry import load_registry
from convert.reindex import reindex_root
from convert.run.command import main as convert
from convert.sample.command import make_sample
from tests.fixtures.datasets.doctor_root import diagnose

DROID = load_registry().dataset("droid")
REMEDY = "correct `spaces` in the registry, then run pairstream reindex"
Entry = dict[str, Any]


@pytest.fixture(scope="module")
def valid_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor-spaces")
    make_sample(folder / "source", [DROID], episodes=3, steps=40, shards=1, jobs=1)
    arguments = ["--source", str(folder / "source"), "--output", str(folder / "out"), "--image-size", "16"]
    assert convert(["--datasets", "droid", *arguments, "--num-workers", "1"]) == 0
    return folder / "out"


def findings(root: Path) -> list[Finding]:
    return [finding for finding in diagnose(root, frames=2).findings if finding.rule.name.startswith("space_")]


def test_a_sound_mapping_has_no_findings(valid_root: Path) -> None:
    assert findings(valid_root) == []


def terms(entry: Entry, space: str, vector: str = "action") -> list[Entry]:
    actual: list[Entry] = entry["spaces"][space][vector]
    return actual


def scale(factor: float, term: int) -> Callable[[Entry], None]:
    def edit(entry: Entry) -> None:
        (operation,) = terms(entry, "eef_delta")[term]["then"]
        operation["values"] = [operation["values"][0] * factor]

    return edit


def poses_in_millimetres(entry: Entry) -> None:
    pose = terms(entry, "eef", "state")[0]
    milli = {**pose, "select": [0, 1, 2], "dims": 3, "then": [{"name": "scale", "values": [1000.0]}]}
    entry["spaces"]["eef"]["state"][:1] = [milli, {**pose, "select": [3, 4, 5], "dims": 3}]


def exchanged_axes(entry: Entry) -> None:
    terms(entry, "eef_delta")[0]["select"] = [2, 0, 1]


def exchanged_ends(entry: Entry) -> None:
    terms(entry, "eef_delta")[2]["then"][0]["values"] = [0, 1]


def exchanged_ends_of_the_joints(entry: Entry) -> None:
    terms(entry, "joint", "state")[1]["then"][0]["values"] = [0, 1]


def gripper_of_another_range(entry: Entry) -> None:
    terms(entry, "eef_delta")[2]["then"] = [{"name": "scale", "values": [255.0]}]


def gripper_of_a_constant(entry: Entry) -> None:
    terms(entry, "eef_delta")[2] |= {"path": "discount", "then": []}


FACTOR, UNRELATED, INVERTED = ["space_delta_factor"], ["space_delta_unrelated"], ["space_gripper_inverted"]
FAULTS: list[tuple[Callable[[Entry], None], list[str], str]] = [
    (scale(10, 0), FACTOR, "action_eef_delta x is too large for the poses of state_eef, by a .* 10$"),
    (scale(180 / 3.14159265, 1), FACTOR, "action_eef_delta roll is too large for the poses of .* 57$"),
    (scale(-1, 0), UNRELATED, "action_eef_delta x does not follow the poses of state_eef"),
    (exchanged_axes, UNRELATED, "action_eef_delta x does not follow the poses of state_eef"),
    (scale(1000, 0), [*FACTOR, "space_units"], "action_eef_delta x is too large for the poses of .* 1000$"),
    (poses_in_millimetres, [*FACTOR, "space_units"], "action_eef_delta x is too small for the poses of .* 1000$"),
    (exchanged_ends, INVERTED, "action_eef_delta gripper is"),
    (exchanged_ends_of_the_joints, INVERTED, "action_joint gripper is"),
    (gripper_of_another_range, [*INVERTED, "space_gripper_range"], "action_eef_delta gripper is"),
    (gripper_of_a_constant, ["space_gripper_still"], "action_eef_delta gripper is 1 at all 120 steps"),
]


@pytest.mark.parametrize(("fault", "rules", "text"), FAULTS)
def test_a_fault_is_found_with_its_dimension_and_what_to_do(
    valid_root: Path, tmp_path: Path, fault: Callable[[Entry], None], rules: list[str], text: str
) -> None:
    entry = DROID.model_dump(mode="json", exclude={"name"}, exclude_none=True)
    fault(entry)
    (tmp_path / "droid.yaml").write_text(yaml.safe_dump({"datasets": {"droid": entry}}))
    root = Path(shutil.copytree(valid_root, tmp_path / "out"))
    reindex_root(str(root), config=[str(tmp_path / "droid.yaml")])
    actual = findings(root)
    assert sorted({finding.rule.name for finding in actual}) == rules
    assert re.match(text, actual[0].examples[0].text)
    assert REMEDY in actual[0].rule.meaning
    # Only a gripper that never moves is of no episode.
    assert (actual[0].examples[0].source_file is None) == (rules == ["space_gripper_still"])
