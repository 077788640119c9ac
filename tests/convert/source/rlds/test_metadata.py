"""Sources whose metadata lead elsewhere: nothing foreign is imported, and no file outside of them is opened."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from convert.errors import SourceError
from convert.source.rlds.dataset import find_dataset
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    return write_dataset(tmp_path_factory.mktemp("source"), splits={"train": [[demo_episode(1)]]})


@pytest.fixture
def copied(written: RldsDataset, tmp_path: Path) -> Path:
    """The folder of a dataset, to change."""
    shutil.copytree(written.root, tmp_path / "source")
    return tmp_path / "source" / written.path.relative_to(written.root)


def change(folder: Path, name: str, edit: Any) -> None:
    content = json.loads((folder / name).read_text())
    edit(content)
    (folder / name).write_text(json.dumps(content))


def find(folder: Path) -> Any:
    return find_dataset([str(folder.parents[1])], folder.parent.name, folder.name)


@pytest.mark.parametrize("form", ["pythonClassName", "type"])
def test_a_class_of_a_feature_is_not_imported(copied: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """TFDS would import the module, from the working folder too, and so run what it holds."""
    (copied / "evil_module.py").write_text(f"open({str(copied / 'ran')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(copied))
    class_name = "evil_module.Feature"
    evil = {"pythonClassName": class_name} if form == "pythonClassName" else {"type": class_name, "content": {}}
    change(copied, "features.json", lambda tree: tree["featuresDict"]["features"].update(evil=evil))
    with pytest.raises(
        SourceError,
        match=r"features\.json has a feature of the class 'evil_module\.Feature', which is not one of TFDS's",
    ):
        find(copied)
    assert "evil_module" not in sys.modules
    assert not (copied / "ran").exists()


@pytest.mark.parametrize(
    "template", ["../../{SPLIT}-{SHARD_X_OF_Y}", "/etc/{SPLIT}-{SHARD_X_OF_Y}", "a/{SHARD_X_OF_Y}"]
)
def test_files_outside_of_the_dataset_are_not_opened(copied: Path, template: str) -> None:
    change(copied, "dataset_info.json", lambda info: info["splits"][0].update(filepathTemplate=template))
    with pytest.raises(SourceError):
        result = find(copied)
        for split in result.splits:
            result.shards(split)


def test_the_name_of_a_dataset_does_not_lead_outside(copied: Path) -> None:
    change(copied, "dataset_info.json", lambda info: info.update(name="../../../etc/demo"))
    assert [Path(shard.path).parent for shard in find(copied).shards("train")] == [copied]


@pytest.mark.parametrize("name", ["../train", "/train", "..", "tr/ain", "", 5, "a" * 300])
def test_a_split_that_cannot_be_a_folder_is_refused(copied: Path, name: Any) -> None:
    change(copied, "dataset_info.json", lambda info: info["splits"][0].update(name=name))
    with pytest.raises(SourceError, match=r"has a split .*; splits become folders|TFDS cannot read its metadata"):
        find(copied)


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", [b"[" * 10**6, b'{"a":' * 10**6, b"\xff\xfe", b'{"a": 1' + b"0" * 10**5 + b"}"])
def test_metadata_nested_without_end_are_refused(copied: Path, name: str, content: bytes) -> None:
    (copied / name).write_bytes(content)
    with pytest.raises(SourceError, match=f"{name}: not a JSON file"):
        find(copied)


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_metadata_larger_than_any_are_not_read(copied: Path, name: str) -> None:
    with (copied / name).open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(SourceError, match=f"{name}: not a JSON file .larger than"):
        find(copied)
