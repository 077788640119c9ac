"""Manifests, quarantine lists and strange files."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convert.index import statistics
from convert.journal.journal import FOLDER
from stream.format.statistics import describe_values
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset
from tests.fixtures.faults.conversion_damage import (
    DATASET,
    STEM,
    become_a_folder,
    become_a_loose_link,
    edit_manifest,
    empty,
    entry_of,
    lengthen,
    problems,
    remove,
    scramble,
    truncate,
    verify,
    zero,
)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"\0" * 100, b"\xff\xfe", b"[" * 100_000, b'{"format_version": 1}'],
    ids=["empty", "open", "null", "list", "zeros", "no text", "deep", "bare"],
)
def test_a_manifest_that_is_none_is_named(root: Path, folder: Path, content: bytes) -> None:
    (folder / "dataset.json").write_bytes(content)
    assert [problem.file for problem in verify(root).problems] == [str(folder / "dataset.json")]


@pytest.mark.parametrize("damage", [truncate, zero, scramble, become_a_folder, become_a_loose_link])
def test_a_damaged_manifest_is_named(root: Path, folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder / "dataset.json")
    assert [problem.file for problem in verify(root).problems] == [str(folder / "dataset.json")]


@pytest.mark.parametrize("name", ["..", "../../x", "/etc/passwd", "a/b", "", ".", "x\n"])
@pytest.mark.parametrize("damaged_path", ["shard", "split", "dataset"])
def test_a_manifest_cannot_name_a_path(root: Path, folder: Path, damaged_path: str, name: str) -> None:
    def edit(manifest: Any) -> None:
        if damaged_path == "shard":
            entry_of(manifest)["name"] = name
        elif damaged_path == "split":
            manifest["splits"][name] = manifest["splits"].pop("train")
        else:
            manifest["dataset"] = name

    edit_manifest(folder, edit)
    (problem,) = verify(root).problems
    assert problem.file == str(folder / "dataset.json") and problem.text.startswith("field ")


def plus_one(*keys: str) -> Callable[[Any], object]:
    """Add one to the number at a place in the manifest."""

    def edit(manifest: Any) -> None:
        *parents, last = keys
        for key in parents:
            manifest = manifest[key]
        manifest[last] += 1

    return edit


def set_split_total(manifest: Any) -> None:
    manifest["splits"]["train"]["records"] += 1
    manifest["records"] += 1


def repeat_shard(manifest: Any) -> None:
    split = manifest["splits"]["train"]
    split["shards"].append(split["shards"][0])
    for owner in (split, manifest):
        for key in ("episodes", "steps", "records"):
            owner[key] += split["shards"][0][key]


MANIFEST_EDITS: list[tuple[Callable[[Any], object], str]] = [
    (plus_one("steps"), "the dataset says"),
    (set_split_total, "split train says"),
    (plus_one("left_out", "empty"), "left out as empty, its shards add up to"),
    (plus_one("image", "sizes", "64x64"), "passed through or transcoded"),
    (plus_one("image", "sizes", "64x64"), "frames of 64x64, its shards add up to"),
    (plus_one("image", "passed"), "frames passed through, its shards"),
    (lambda manifest: manifest.update(image={"sizes": 3}), "field image"),
    (lambda manifest: manifest["parameters"].pop("offset"), "no offset"),
    (lambda manifest: manifest["parameters"]["frame_offsets"].reverse(), "no offset"),
    (
        lambda manifest: entry_of(manifest).update(name="train-00000-of-x"),
        "split train lists a shard 'train-00000-of-x'",
    ),
    (lambda manifest: manifest["splits"]["train"]["shards"].reverse(), "lists 'train-00000-of-00002' after number 1"),
    (lambda manifest: manifest["statistics"].pop("val"), "has statistics of train, expected of train, val"),
    (repeat_shard, "lists shard train-00000-of-00002 twice"),
    (lambda manifest: manifest.update(dataset="kuka"), "is of dataset 'kuka', its folder says 'bridge_dataset'"),
    (lambda manifest: manifest.update(version="2.0.0"), "is of version '2.0.0', its folder says '1.0.0'"),
]


@pytest.mark.parametrize(("edit", "text"), MANIFEST_EDITS)
def test_a_manifest_that_contradicts_itself_is_found_out(
    root: Path, folder: Path, edit: Callable[[Any], object], text: str
) -> None:
    edit_manifest(folder, edit)
    report = verify(root, deep=False)
    assert text in problems(report) and str(folder / "dataset.json") in {problem.file for problem in report.problems}


def test_a_changed_byte_of_a_manifest_is_always_found(root: Path, folder: Path) -> None:
    path = folder / "dataset.json"
    complete_bytes, rng = path.read_bytes(), random.Random(0)
    for _ in range(60):
        content = bytearray(complete_bytes)
        start = rng.randrange(len(content))
        content[start : start + rng.choice([1, 2, 40])] = rng.choice([b"", b"9", b"-", b'"x"', b"[]", b"null", b"\xff"])
        path.write_bytes(content)
        actual = {problem.file for problem in verify(root, deep=False).problems}
        assert (str(path) in actual) == (bytes(content) != complete_bytes)


def test_a_root_of_format_1_is_one_sentence(root: Path, folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(format_version=1))
    (problem,) = verify(root).problems
    assert problem.text.startswith("format version 1, this program reads version 2; convert it again")


def test_a_registry_entry_that_has_changed_since_is_a_note_that_names_the_command(root: Path, folder: Path) -> None:
    def edit(manifest: Any) -> None:
        manifest["spec"]["control_frequency"] = 99.0
        manifest["spec"]["quirks"] = ["none"]

    edit_manifest(folder, edit)
    report = verify(root)
    (finding,) = report.findings
    note = finding.examples[0].text
    assert report.ok and "(other control_frequency, quirks)" in note
    assert f"`pairstream reindex {root} --datasets {DATASET}`" in note
    assert note in report.to_text()


def test_a_dataset_that_the_packaged_registry_does_not_have_is_no_note(root: Path, folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(dataset="mine"))
    folder.parent.rename(root / "mine")
    assert verify(root, deep=False).findings == []


def test_a_registry_entry_in_the_manifest_that_is_none_names_the_field(root: Path, folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest["spec"]["action"][0].update(dims="many"))
    assert "field spec.action.0.dims: " in problems(verify(root))


@pytest.mark.parametrize("key", ["mean", "std", "min", "q99"])
def test_statistics_that_the_steps_do_not_give_are_found_when_deep(root: Path, folder: Path, key: str) -> None:
    def edit(manifest: Any) -> None:
        manifest["statistics"]["train"]["action"][key][2] += 0.001

    edit_manifest(folder, edit)
    assert verify(root, deep=False).ok
    assert f"statistics of train action: {key} of z is" in problems(verify(root))


def test_statistics_that_the_conversion_read_wrongly_are_found_when_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "source", splits={"train": [[demo_episode(6)]]})
    with monkeypatch.context() as patch:
        patch.setattr(statistics, "describe_values", lambda values: describe_values(values + 1))
        convert_dataset(dataset.conversion(tmp_path / "out"))
    assert "statistics of train action: mean of action[1] is" in problems(verify(tmp_path / "out"))


def test_frames_that_the_manifest_does_not_count_are_found_when_deep(root: Path, folder: Path) -> None:
    def edit(manifest: Any) -> None:
        manifest["image"]["sizes"]["64x64"] -= 9
        manifest["image"]["transcoded"] -= 9
        entry_of(manifest)["sizes"]["64x64"] -= 9

    edit_manifest(folder, edit)
    assert f"frames of 64x64 in {STEM}, found" in problems(verify(root))


@pytest.mark.parametrize("damage", [truncate, zero, scramble, lengthen, empty, remove, become_a_folder])
def test_a_damaged_quarantine_list_is_named(root: Path, folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder / "quarantine.jsonl")
    assert {problem.file for problem in verify(root).problems} == {str(folder / "quarantine.jsonl")}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"reason": "malformed"}, "lists 1 of malformed"),
        ({"shard": "test-00000-of-00001"}, "which the manifest does not have"),
    ],
)
def test_a_quarantine_list_of_something_else_is_found_out(
    root: Path, folder: Path, change: dict[str, str], text: str
) -> None:
    path = folder / "quarantine.jsonl"
    first, *remaining = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | change), *remaining, ""]))
    assert text in problems(verify(root))


def test_a_quarantine_list_without_anything_left_out_is_found_out(root: Path) -> None:
    folder = root / "rt1" / "0.1.0"
    shutil.copy(root / DATASET / "1.0.0" / "quarantine.jsonl", folder)
    assert {problem.file for problem in verify(root).problems} == {str(folder / "quarantine.jsonl")}


@pytest.mark.parametrize(
    "name",
    [
        "train/train-00002-of-00003.arrayrecord",
        "train/train-00000-of-00002.steps.arrow",
        "train/notes.txt",
        "val/.tmp",
        "train-00000-of-00001.arrayrecord",
        "steps.arrow",
    ],
)
def test_a_strange_file_is_named(root: Path, folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"")
    assert [problem.file for problem in verify(root).problems] == [str(folder / name)]


def test_a_split_that_is_not_in_the_manifest_is_named(root: Path, folder: Path) -> None:
    shutil.copytree(folder / "val", folder / "test")
    assert [problem.file for problem in verify(root).problems] == [str(folder / "test")]


def test_a_conversion_that_is_not_complete_is_a_problem(root: Path, folder: Path) -> None:
    (folder / "dataset.json").unlink()
    (folder / FOLDER).mkdir()
    (folder / FOLDER / f"{STEM}.status.json").write_text("{}")
    report = verify(root)
    assert "the conversion is incomplete, finished shards: 1" in problems(report)
    assert {entry["dataset"]: entry["verdict"] for entry in report.to_json()["datasets"]} == {
        DATASET: "incomplete",
        "rt1": "ok",
    }


def test_a_split_that_is_being_added_is_a_note(root: Path, folder: Path) -> None:
    (folder / FOLDER).mkdir()
    shutil.copytree(folder / "val", folder / "test")
    report = verify(root)
    assert report.ok and "adding a split goes on" in report.to_text()


@pytest.mark.parametrize(
    "name", ["dataset.json", "dataset.json quarantine.jsonl", "dataset.json quarantine.jsonl val train"]
)
def test_files_without_a_manifest_are_a_problem(root: Path, folder: Path, name: str) -> None:
    for removed in name.split():
        path = folder / removed
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert [problem.file for problem in verify(root).problems] == [str(folder / "dataset.json")]
