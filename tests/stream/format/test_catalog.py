from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stream.base.errors import ArgumentError, FormatError
from stream.format.catalog import Catalog
from stream.format.manifest import read_manifest
from stream.format.names import MANIFEST_NAME
from tests.stream.index_root import write_dataset


def add(root: Path, oxe_root: Path, version: str, *, dataset: str = "bridge") -> Path:
    """Copy the manifest of a sample dataset below a root, under the given version."""
    folder = root / dataset / version
    folder.mkdir(parents=True)
    source = next((oxe_root / dataset).glob(f"*/{MANIFEST_NAME}"))
    shutil.copy(source, folder / MANIFEST_NAME)
    return folder


def test_a_dataset_has_its_manifest_and_the_episodes_of_its_shards(oxe_root: Path) -> None:
    catalog = Catalog(oxe_root)
    assert catalog.complete == sorted(path.name for path in oxe_root.iterdir() if path.is_dir())
    dataset = catalog.open("bridge")
    assert (dataset.name, dataset.version) == ("bridge", "0.1.0")
    assert dataset.folder == oxe_root / "bridge" / "0.1.0"
    full_manifest = read_manifest(dataset.folder).model_dump()
    for split in full_manifest["splits"].values():
        split["shards"] = ()
    assert dataset.manifest.model_dump() == full_manifest
    assert dataset.shard_lengths == {"test": [1, 1], "train": [2, 2]}


def test_a_relative_root_stays_where_it_was_when_the_current_folder_changes(
    tmp_path: Path, oxe_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(oxe_root.parent)
    catalog = Catalog(oxe_root.name)
    monkeypatch.chdir(tmp_path)
    assert catalog.open("bridge").folder == oxe_root / "bridge" / "0.1.0"


def test_the_highest_complete_version_is_opened_or_one_by_its_name(tmp_path: Path, oxe_root: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        add(tmp_path, oxe_root, version)
    (tmp_path / "bridge" / "1.0.0").mkdir()
    # Hidden and empty folders and files are no datasets.
    (tmp_path / "bridge" / ".0.2.0").mkdir()
    (tmp_path / ".cache" / "0.1.0").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()
    catalog = Catalog(tmp_path)
    assert catalog.versions == {"bridge": ["0.2.0", "0.9.0", "0.10.0", "1.0.0"]}
    assert catalog.open("bridge").version == "0.10.0"
    assert (catalog.open("bridge:0.2.0").name, catalog.open("bridge:0.2.0").version) == ("bridge", "0.2.0")
    with pytest.raises(ArgumentError, match=r"bridge: no version '0\.3\.0'; versions there: 0\.2\.0, 0\.9\.0"):
        catalog.open("bridge:0.3.0")


@pytest.mark.parametrize("name", ["bridge:../../outside", "../outside", "bridge:..", ".", ""])
def test_a_name_does_not_lead_out_of_the_root(tmp_path: Path, oxe_root: Path, name: str) -> None:
    add(tmp_path / "root", oxe_root, "0.1.0")
    shutil.copytree(tmp_path / "root" / "bridge" / "0.1.0", tmp_path / "outside")
    with pytest.raises(ArgumentError, match=r"no dataset|no version"):
        Catalog(tmp_path / "root").open(name)


def test_an_unknown_dataset_lists_the_closest(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no dataset 'brige'; did you mean 'bridge'\? Convert it .*weight 0"):
        Catalog(oxe_root).open("brige")


@pytest.mark.parametrize("name", ["bridge", "bridge:0.1.0"])
def test_a_conversion_that_is_not_complete_is_not_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "bridge" / "0.1.0" / "train").mkdir(parents=True)
    catalog = Catalog(tmp_path)
    assert catalog.complete == []
    assert list(catalog.versions) == ["bridge"]
    with pytest.raises(ArgumentError, match=r"bridge: no dataset\.json in 0\.1\.0, so its conversion is not complete"):
        catalog.open(name)


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(ArgumentError, match=f"{name}: no such folder; give the --output of a conversion"):
            Catalog(tmp_path / name)
    with pytest.raises(ArgumentError, match=r"cannot be opened \(File name too long\)"):
        Catalog(tmp_path / ("x" * 300))


def test_a_dataset_is_read_once_and_a_damaged_manifest_is_named(tmp_path: Path, oxe_root: Path) -> None:
    path = add(tmp_path, oxe_root, "0.1.0") / MANIFEST_NAME
    catalog = Catalog(tmp_path)
    first = catalog.open("bridge")
    path.write_bytes(path.read_bytes().replace(b"widowx", b"widowy"))
    assert catalog.open("bridge") is first
    with pytest.raises(FormatError, match=str(path)):
        Catalog(tmp_path).open("bridge")


def test_a_folder_of_roots_is_refused_with_their_names(tmp_path: Path) -> None:
    for number in range(7):
        write_dataset(tmp_path / f"root{number}", "demo", {"train": [[3]]})
    write_dataset(tmp_path / ".hidden", "demo", {"train": [[3]]})
    roots = " or ".join(str(tmp_path / f"root{number}") for number in range(5))
    with pytest.raises(ArgumentError) as error:
        Catalog(tmp_path).open("demo")
    assert str(error.value) == f"{tmp_path}: holds roots, not datasets; give {roots} and 2 more"
