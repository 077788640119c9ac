"""``pairstream draft`` prints an entry that convert.run takes as it is."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from convert.draft import main as draft
from convert.errors import EXIT_USAGE
from convert.registry.registry import load_registry
from convert.run.command import main
from convert.source.kinds import find_source
from stream import make_loader
from tests.fixtures.datasets.lerobot_dataset import DATA
from tests.fixtures.datasets.own_files import write_files
from tests.fixtures.datasets.rlds_dataset import demo_episode, write_dataset

Capture = pytest.CaptureFixture[str]


@pytest.fixture(params=["python", "lerobot", "rlds"])
def source_arguments(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return a dataset of each kind: its source, and options."""
    if request.param == "python":
        actual = write_files(tmp_path, files=2)
        return actual[1:]
    if request.param == "lerobot":
        return ["lerobot:demo/v3_av1", "--source", str(DATA)]
    written = write_dataset(tmp_path, splits={"train": [[demo_episode(5, seed=1)]]})
    return [f"rlds:{written.root / 'demo'}"]


def test_what_is_printed_is_what_the_dataset_says_of_itself(
    source_arguments: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert draft(source_arguments) == 0
    config = tmp_path / "mine.yaml"
    config.write_text(capsys.readouterr().out)
    sources = source_arguments[2:]

    def describe(name: str, source: str, layout: object) -> dict[str, object]:
        return dict(find_source(source, sources, {}).entry)

    (drafted,) = load_registry(config=[config]).resolve(str(config), describe)
    (plain,) = load_registry().resolve(source_arguments[0], describe)
    assert drafted.spec == plain.spec
    assert drafted.spec.cameras and drafted.spec.action
    options = ["--datasets", str(config), "--output", str(tmp_path / "out"), "--num-workers", "1", "--offset", "1"]
    assert main([*options, *source_arguments[1:]]) == 0


def test_json_has_the_same_fields(source_arguments: list[str], capsys: Capture) -> None:
    assert draft([*source_arguments, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["datasets"].values()
    assert entry["source"] == source_arguments[0]
    assert entry["cameras"] and entry["action"]


def test_comments_stand_where_a_person_decides(tmp_path: Path, capsys: Capture) -> None:
    _, source, *more = write_files(tmp_path, files=1)
    assert draft([source, *more]) == 0
    text = capsys.readouterr().out
    assert "# control_frequency: steps a second; the data do not say" in text
    assert "# robot: name of the robot" in text
    assert "front: {path: observation/front, role: primary, shape: [32, 48, 3]}" in text
    assert "instruction: {path: /language_instruction}" in text


@pytest.mark.parametrize(
    ("wrong_path", "message"),
    [
        ("nothing", "unknown"),
        ("/no/such/place", "no such file or folder; a dataset is a name, KIND:PLACE or a path"),
        ("lerobt:demo/v3_av1", "no kind of source 'lerobt'; did you mean 'lerobot'"),
        ("rlds:/no/such", "no dataset_info.json, nor a version with it; tried /no/such"),
    ],
)
def test_a_wrong_place_is_one_error(wrong_path: str, message: str, capsys: Capture) -> None:
    assert draft([wrong_path]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert message in error or "no such file" in error
    assert error.count("\n") == 1


def test_a_dataset_without_a_camera_is_refused(tmp_path: Path, capsys: Capture) -> None:
    _, source, *more = write_files(tmp_path, files=1)
    module = Path(source.split(":")[1])
    module.write_text(module.read_text().replace('"front": stored[f"front{number}"], ', ""))
    assert draft([source, *more]) == EXIT_USAGE
    assert "has no camera; a camera is a feature of the steps with pictures" in capsys.readouterr().err


def test_features_with_the_form_of_depth_maps_are_a_comment(tmp_path: Path, capsys: Capture) -> None:
    _, source, *more = write_files(tmp_path, files=1)
    module = Path(source.split(":")[1])
    depth = '"depth": stored[f"front{number}"][..., 0].astype(np.uint16), "state"'
    module.write_text(module.read_text().replace('"state"', depth))
    assert draft([source, *more]) == 0
    line = "# depth: {path: observation/depth, role: other, kind: depth, unit: mm or m}  # if these are depth maps"
    assert f"      {line}" in capsys.readouterr().out.splitlines()


def test_attributes_are_listed_and_an_action_is_proposed_by_its_name(tmp_path: Path, capsys: Capture) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["demo_0/front"] = np.zeros((3, 16, 16, 3), np.uint8)
        file["demo_0/joint_cmd"] = np.zeros((3, 7))
        file["demo_0"].attrs["task"] = "fold the towel"
        file.attrs["robot"] = "arm"
    assert draft([f"arrays:{tmp_path / 'a.hdf5'}"]) == 0
    shown = capsys.readouterr().out
    assert "# attributes of the file: /@robot = arm" in shown
    assert "# attributes of demo_0: @task = fold the towel" in shown
    assert 'add `layout: {language: {path: "@task"}}`' in shown
    assert "# action: [{path: joint_cmd, dims: 7}]  # numbers: " in shown


def test_a_path_to_arrays_of_no_preset_is_drafted_and_its_lines_count_without_their_hash(
    tmp_path: Path, capsys: Capture
) -> None:
    with h5py.File(tmp_path / "own.hdf5", "w") as file:
        file["front"] = np.zeros((9, 16, 16, 3), np.uint8)
        file["cmd"], file["joints"] = np.ones((9, 7)), np.ones((9, 6))
        file.attrs["task"] = "fold the towel"
    options = ["--datasets", str(tmp_path / "own.yaml"), "--output", str(tmp_path / "out"), "--num-workers", "1"]
    assert draft([str(tmp_path / "own.hdf5")]) == 0
    shown = capsys.readouterr().out
    (tmp_path / "own.yaml").write_text(shown)
    assert main([*options, "--offset", "1"]) == 0
    assert "warning: own: the entry names no action and no state, so batches have none;" in capsys.readouterr().err
    for vector in ("action", "state"):
        shown = shown.replace(f"# {vector}:", f"{vector}:")
    shown = shown.replace("    cameras:", '    layout: {language: {path: "@task"}}\n    cameras:')
    (tmp_path / "own.yaml").write_text(shown)
    assert main([*options, "--offset", "1", "--overwrite"]) == 0
    assert "warning" not in capsys.readouterr().err
    batch = make_loader(tmp_path / "out", "own", batch_size=2).batch_at(0)
    assert (batch["action"].shape[-1], batch["state"].shape[-1], batch["language"][0]) == (7, 6, "fold the towel")
