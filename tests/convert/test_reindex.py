"""A fix in the registry reaches a converted dataset, without reading an image, also after a kill at any moment."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.measure.session import Result
from convert.errors import EXIT_FAILED, EXIT_USAGE
from convert.journal.journal import FOLDER, MANIFEST, Journal
from convert.journal.store import PARAMETERS
from convert.reindex import main, reindex_root
from convert.storage.staging import machine
from convert.verify.command import verify_root
from stream import add_labels, make_loader
from stream.format.fields import read_fields
from stream.format.manifest import encode_manifest, read_manifest
from stream.format.names import MANIFEST_NAME, table_file
from stream.format.table import open_table
from tests.fixtures.datasets.indexed_root import DATASET, make_indexed_root, write_registry
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset
from tests.fixtures.faults.disk import disks_of, write_tree
from tests.fixtures.faults.kill_points import check_as_reader

Command = Callable[..., Result]
NEW_STATE = [{"path": "bits", "dims": 5, "quantity": "other", "kind": "flag"}]


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return write_registry(tmp_path / "registry.yaml")


@pytest.fixture
def folder(tmp_path: Path, registry: Path) -> Path:
    return make_indexed_root(tmp_path / "root", registry)


@pytest.fixture
def reindex(folder: Path, registry: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def command(*more: str, root: Path | str = folder.parent.parent, **changed: Any) -> Result:
        write_registry(registry, **changed)
        code = main([str(root), "--config", str(registry), *more])
        return Result(code, *capsys.readouterr())

    return command


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {name: content for name, (_, content) in files_of(folder).items()}


def steps_of(folder: Path, split: str) -> Any:
    return open_table(folder / split / table_file("steps"), "steps").arrow()


def test_new_parts_of_the_registry_become_columns_statistics_and_the_entry_in_the_manifest(
    folder: Path, reindex: Command
) -> None:
    before, old = contents(folder), read_manifest(folder)
    result = reindex("--json", state=NEW_STATE)
    assert result.code == 0, result.err
    (actual,) = json.loads(result.out)
    assert (actual["dataset"], actual["kept"]) == (DATASET, [])
    assert actual["changed"] == ["registry entry", "statistics", "state"]
    changed = {name for name, content in contents(folder).items() if before[name] != content}
    assert changed == {MANIFEST_NAME, "train/steps.arrow", "val/steps.arrow"}
    manifest = read_manifest(folder)
    for split, entry in manifest.splits.items():
        steps = steps_of(folder, split)
        for derived, raw in zip(steps["state"].to_pylist(), steps["bits"].to_pylist(), strict=True):
            np.testing.assert_array_equal(derived, [np.nan] * 5 if raw is None else raw)
        statistics = manifest.statistics[split]["state"]
        assert statistics.names == tuple(f"bits[{number}]" for number in range(5))
        assert max(number or 0 for number in statistics.max) == 1
        assert statistics.count == entry.steps
        assert manifest.statistics[split]["action"] == old.statistics[split]["action"]
        open_table(folder / split / table_file("steps"), "steps", entry=entry.index["steps"], rows=entry.steps)
    assert [part["path"] for part in manifest.spec["state"]] == ["bits"]
    assert manifest.parameters == old.parameters
    assert not (folder / FOLDER).exists()


def test_another_mapping_to_a_space_becomes_a_column_with_statistics(folder: Path, reindex: Command) -> None:
    old = read_manifest(folder)
    terms = [{"path": "bits", "select": [0, 1], "dims": 2, "then": ["invert"]}, {"pad": 1}]
    result = reindex("--json", spaces={"joint": {"action": terms, "unknown_units": ["joint_2"]}})
    assert json.loads(result.out)[0]["changed"] == ["registry entry", "statistics", "action_joint"]
    manifest = read_manifest(folder)
    for split, entry in manifest.splits.items():
        steps = steps_of(folder, split)
        for actual, raw in zip(steps["action_joint"].to_pylist(), steps["bits"].to_pylist(), strict=True):
            expected = [np.nan] * 2 if raw is None else np.subtract(1, raw[:2], dtype=float)
            np.testing.assert_array_equal(actual, [*expected, np.nan])
        statistics = manifest.statistics[split]["action_joint"]
        assert statistics.names == ("joint_1", "joint_2", "joint_3")
        assert (statistics.count, statistics.nonfinite[2], statistics.mean[2]) == (entry.steps, entry.steps, None)
        assert manifest.statistics[split]["state"] == old.statistics[split]["state"]
    space = read_fields(manifest, context="").spaces["joint"]
    assert space.names("joint", "action") == ("joint_1", "joint_2", "joint_3")
    assert (space.names("joint", "state"), space.unknown_units) == ((), ("joint_2",))


def test_a_space_that_is_not_mapped_any_more_loses_its_column(folder: Path, reindex: Command) -> None:
    result = reindex("--json", spaces={"joint": {"unmapped": "Nobody knows the joints."}})
    assert json.loads(result.out)[0]["changed"] == ["registry entry", "statistics", "action_joint"]
    assert "action_joint" not in steps_of(folder, "train").column_names
    assert read_fields(read_manifest(folder), context="").spaces["joint"].unmapped == "Nobody knows the joints."


def test_a_second_run_touches_no_file(folder: Path, reindex: Command) -> None:
    assert reindex(state=NEW_STATE).code == 0
    before = files_of(folder)
    result = reindex(state=NEW_STATE)
    assert result.code == 0
    assert "unchanged" in result.out
    assert files_of(folder) == before


def test_going_back_to_the_old_registry_gives_the_old_bytes(folder: Path, reindex: Command) -> None:
    before = contents(folder)
    assert reindex(state=NEW_STATE, action=[]).code == 0
    assert "action" not in steps_of(folder, "train").column_names
    assert "action" not in read_manifest(folder).statistics["train"]
    assert reindex().code == 0
    assert contents(folder) == before


def test_an_entry_that_differs_in_words_only_changes_the_manifest_alone(folder: Path, reindex: Command) -> None:
    before = files_of(folder)
    result = reindex("--json", description="Other words.")
    assert json.loads(result.out)[0]["changed"] == ["registry entry"]
    assert {name for name, file in files_of(folder).items() if before[name] != file} == {MANIFEST_NAME}


def test_what_only_a_conversion_can_change_is_named_and_parameters_stay(folder: Path, reindex: Command) -> None:
    camera = {"path": "image", "role": "primary", "channels": "bgr", "storage": "jpeg", "shape": [8, 8, 3]}
    before = read_manifest(folder)
    result = reindex(cameras={"image": camera}, robot="other arm")
    assert result.code == 0
    assert "the registry's cameras, robot differ too; images and raw columns stay" in result.out
    assert read_manifest(folder).parameters == before.parameters


KILLED = ("before anything", "withdrawn", "one split placed", "all placed", "journal left", "under the old manifest")


def leave(folder: Path, after: Path, killed: str) -> None:
    """Make a folder, of which ``after`` is a copy that was reindexed, as a kill leaves it."""
    moment = KILLED.index(killed)
    if killed != "under the old manifest":
        Journal(folder).make()
        (folder / FOLDER / f"{MANIFEST}.lock").touch()
        stage = folder / FOLDER / f"{MANIFEST}.{machine()}-1-abcd.tmp"
        stage.mkdir()
        (stage / table_file("steps")).write_bytes(b"half of a ta")
        if moment > 0:
            Journal(folder).withdraw()
    for split in {2: ["train"], 3: ["train", "val"], 4: ["train", "val"], 5: ["train"]}.get(moment, []):
        shutil.copy(after / split / table_file("steps"), folder / split)
    if killed == "journal left":
        shutil.copy(after / MANIFEST_NAME, folder)


@pytest.mark.parametrize("killed", KILLED)
@pytest.mark.parametrize("onward", [True, False], ids=["the same registry", "the old registry"])
def test_a_kill_at_any_moment_is_mended_by_running_it_again(
    killed: str, onward: bool, folder: Path, reindex: Command, tmp_path: Path
) -> None:
    before = contents(folder)
    after = Path(shutil.copytree(folder, tmp_path / "after" / DATASET / "1.0.0"))
    changed = {"state": NEW_STATE}
    assert reindex(root=after, **changed).code == 0
    leave(folder, after, killed)
    result = reindex(**(changed if onward else {}))
    assert result.code == 0, result.err
    assert contents(folder) == (contents(after) if onward else before)
    assert not (folder / FOLDER).exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"state": [{"path": "depth", "dims": 3, "quantity": "other", "kind": "flag"}]},
            "the registry's state takes depth, but in train column 'depth' is missing; convert demo again",
        ),
        (
            {"spaces": {"joint": {"state": [{"path": "bits", "select": [9]}]}}},
            "the registry's state_joint takes bits, but in train column 'bits' has 5 values, expected at least 10;",
        ),
        ({"version": "2.0.0"}, "was converted from version 1.0.0, the registry says 2.0.0; convert demo again"),
        ({"tfds_name": "other"}, "was converted from tfds_name demo, the registry says other; convert demo again"),
    ],
    ids=["a part that was not converted", "a term that was not converted", "another version", "another source"],
)
def test_an_entry_that_the_raw_columns_are_not_enough_for_is_refused(
    changed: dict[str, Any], message: str, folder: Path, reindex: Command
) -> None:
    before = files_of(folder)
    result = reindex(**changed)
    assert result.code == EXIT_USAGE
    assert message in result.err and str(folder) in result.err
    assert files_of(folder) == before


@pytest.mark.long
def test_a_power_cut_leaves_no_manifest_or_a_true_one_and_is_mended_by_running_it_again(
    folder: Path, registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_labels(folder.parent.parent, DATASET, {"episode": [0], "grade": [1.5]}, split="train")
    write_registry(registry, state=NEW_STATE)
    reindex_all = partial(reindex_root, config=[str(registry)])
    during, after = disks_of(lambda root: reindex_all(str(root)), folder.parent.parent, monkeypatch)
    complete = contents(folder)
    for number, tree in enumerate([*during, *after]):
        left = tmp_path / f"left{number}"
        write_tree(tree, left)
        check_as_reader(left, lost=set(), folder=str(folder.relative_to(folder.parent.parent)))
        reindex_all(str(left))
        assert contents(left / folder.relative_to(folder.parent.parent)) == complete
        shutil.rmtree(left)
    assert len(during) > 10
    assert all(f"{folder.relative_to(folder.parent.parent)}/{MANIFEST_NAME}" in tree for tree in after)


def test_nothing_changes_if_one_of_several_datasets_cannot_be_reindexed(
    folder: Path, reindex: Command, tmp_path: Path
) -> None:
    root = folder.parent.parent
    second = Path(shutil.copytree(folder, root / "unknown" / "1.0.0"))
    manifest = read_manifest(folder).model_copy(update={"dataset": "unknown"})
    (second / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    before = files_of(root)
    result = reindex(state=NEW_STATE)
    assert result.code == EXIT_USAGE
    assert "unknown is not in the registry" in result.err and "--config" in result.err
    assert files_of(root) == before
    assert reindex("--datasets", DATASET, state=NEW_STATE).code == 0


def test_damaged_raw_columns_do_not_get_new_checksums(folder: Path, reindex: Command) -> None:
    path = folder / "train" / table_file("steps")
    values = open_table(path, "steps").columns["observation/state"].spans[-1]
    with path.open("r+b") as file:
        file.seek(values[0])
        file.write(b"damaged!")
    before = files_of(folder)
    result = reindex(state=NEW_STATE)
    assert result.code == EXIT_FAILED
    assert "train/steps.arrow: column 'observation/state' is not what the manifest says" in result.err
    assert files_of(folder) == before


def test_a_conversion_that_is_not_complete_is_left_alone(folder: Path, reindex: Command) -> None:
    Journal(folder).make()
    (folder / FOLDER / PARAMETERS).write_text("{}")
    before = files_of(folder)
    result = reindex(state=NEW_STATE)
    assert result.code == EXIT_USAGE
    assert "a conversion is not complete here; run the same convert.run command" in result.err
    assert files_of(folder) == before


def test_a_folder_without_a_manifest_is_refused(folder: Path, reindex: Command) -> None:
    (folder / MANIFEST_NAME).unlink()
    result = reindex()
    assert result.code == EXIT_USAGE
    assert "no dataset.json, so the conversion is not complete" in result.err


@pytest.mark.parametrize(
    ("root", "more", "message"),
    [
        ("gs://bucket/oxe", (), "only local folders are reindexed"),
        ("{empty}", (), "nothing was converted here"),
        (None, ("--datasets", "demi"), "no dataset 'demi'; did you mean"),
        (None, ("--datasets", ","), "names no dataset"),
        (None, ("--config", "/nowhere.yaml"), "/nowhere.yaml"),
    ],
)
def test_what_cannot_be_started_is_a_usage_error(
    root: str | None, more: tuple[str, ...], message: str, reindex: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    path = {} if root is None else {"root": root.format(empty=tmp_path / "empty")}
    result = reindex(*more, **path)
    assert (result.code, result.out) == (EXIT_USAGE, "")
    assert message in result.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_line(folder: Path, reindex: Command) -> None:
    folder.chmod(0o500)
    result = reindex(state=NEW_STATE)
    folder.chmod(0o700)
    assert result.code == EXIT_USAGE
    assert "cannot be written" in result.err


def test_a_loader_of_converted_data_gives_the_new_vector_and_statistics(tmp_path: Path) -> None:
    source = write_dataset(
        tmp_path / "source", splits={"train": [[demo_episode(9, seed=1)], [demo_episode(7, seed=2)]]}
    )
    root = tmp_path / "root"
    manifest = convert_dataset(source.conversion(root))
    folder = root / "demo" / manifest.version
    before = make_loader(root, "demo", batch_size=4, shuffle="none").batch_at(1)
    images = {path: path.read_bytes() for path in folder.rglob("*.arrayrecord")}
    state = [{"path": "observation/state", "dims": 2, "select": [2, 0], "quantity": "other", "kind": "absolute"}]
    assert main([str(root), "--config", str(source.registry(state=state))]) == 0
    loader = make_loader(root, "demo", batch_size=4, shuffle="none")
    after = loader.batch_at(1)
    np.testing.assert_array_equal(after["state"], before["state"][:, [2, 0]])
    for name in ("frames", "action", "step"):
        np.testing.assert_array_equal(after[name], before[name])
    mean = read_manifest(folder).statistics["train"]["state"].mean
    old = manifest.statistics["train"]["state"].mean
    assert mean == (old[2], old[0])
    assert {path: path.read_bytes() for path in folder.rglob("*.arrayrecord")} == images
    assert verify_root(root, deep=True, jobs=1).problems == []
