"""Kinds of sources and their locations: paths, globs, and kinds that another package brings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from convert.errors import ConfigError, SourceError, UsageError
from convert.source import kinds
from convert.source.kinds import find_source, is_source, recognise, split_source, suggest_layout
from convert.source.locations import candidates, find_paths
from tests.fixtures.datasets.lerobot_dataset import DATA
from tests.fixtures.datasets.rlds_dataset import demo_episode, write_dataset
from tests.fixtures.faults.other_user import errors_of_other_user, open_to_others


def test_a_source_is_told_from_a_name() -> None:
    sources = [
        "lerobot:a/b",
        "rlds:bridge",
        "s3://bucket/data",
        "/data",
        "./data",
        "reader.py",
        "lift.hdf5",
        "a.zarr.zip",
    ]
    assert all(map(is_source, sources)) and not any(map(is_source, ["bridge", "oxe29", "both.yaml"]))


def test_folders_are_recognised_by_their_content(tmp_path: Path) -> None:
    written = write_dataset(tmp_path, splits={"train": [[demo_episode(3, seed=1)]]})
    assert recognise(str(DATA / "demo" / "v3_av1")) == "lerobot"
    assert recognise(str(written.path)) == recognise(str(written.path.parent)) == "rlds"
    message = r"its content does not show the kind of a dataset; write KIND:.* with one of .*rlds"
    with pytest.raises(ConfigError, match=message):
        recognise(str(tmp_path))


def test_a_path_is_one_of_the_folder_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_dataset(tmp_path / "data", splits={"train": [[demo_episode(3, seed=1)]]})
    monkeypatch.chdir(tmp_path)
    for text in ("data/demo", "./data/demo"):
        assert split_source(text) == ("rlds", str(written.path.parent))
        assert find_source(text, [], {}).path == str(written.path)


def test_the_newest_version_is_taken(tmp_path: Path) -> None:
    written = write_dataset(tmp_path, splits={"train": [[demo_episode(3, seed=1)]]})
    written.path.rename(written.path.parent / "10.0.0")
    write_dataset(tmp_path, splits={"train": [[demo_episode(3, seed=1)]]})
    assert find_source(f"rlds:{written.path.parent}", [], {}).path.endswith("10.0.0")
    assert find_source("rlds:demo", [str(tmp_path)], {}).path.endswith("10.0.0")
    assert find_source("rlds:demo/1.0.0", [str(tmp_path)], {}).path.endswith("1.0.0")


@pytest.fixture
def entry_point(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A kind ``mine`` of another package."""
    point = EntryPoint("mine", request.param, "pairstream.sources")
    monkeypatch.setattr(kinds, "entry_points", lambda group: [point] if group == "pairstream.sources" else [])
    kinds.kinds.cache_clear()
    yield
    kinds.kinds.cache_clear()


@pytest.mark.usefixtures("entry_point")
@pytest.mark.parametrize("entry_point", ["tests.convert.source.test_kinds:find_mine"], indirect=True)
def test_another_package_brings_a_kind() -> None:
    result: Any = find_source("mine:place", ["root"], {"a": 1})
    assert result == ("place", ["root"], {"a": 1})


def find_mine(location: str, roots: list[str], layout: dict[str, Any]) -> Any:
    return location, list(roots), dict(layout)


@pytest.mark.usefixtures("entry_point")
@pytest.mark.parametrize("entry_point", ["no_such_module:find", "tests.convert.source.test_kinds:none"], indirect=True)
def test_a_kind_whose_function_is_missing_is_one_error() -> None:
    with pytest.raises(UsageError, match=r"No module named 'no_such_module'|the module has no such function"):
        find_source("mine:place", [], {})


def test_a_library_that_is_missing_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "rosbags" or "source.rosbag" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rosbags", None)
    for ask in (lambda: find_source("rosbag:/data", [], {}), lambda: suggest_layout("rosbag:/data", [])):
        with pytest.raises(UsageError, match=r"rosbag: needs rosbags.* install pairstream\[rosbag\]"):
            ask()


@pytest.mark.parametrize("kind", ["lerobot", "rlds"])
def test_a_layout_is_refused_where_the_kind_has_one(kind: str) -> None:
    with pytest.raises(UsageError, match=f"layout: files: {kind} datasets have one layout"):
        find_source(f"{kind}:/data", [], {"files": "*"})


@pytest.mark.parametrize(("text", "kind"), [("hdf5:/a", "arrays"), ("mcap:/a", "rosbag"), ("tfds:/a", "rlds")])
def test_the_name_of_a_format_leads_to_the_kind_that_reads_it(text: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"no kind of source '[a-z0-9]+'; did you mean '{kind}'"):
        split_source(text)


def names(folder: Path, root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in find_paths(str(folder), ["*.bin"])[1]]


def made(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


@pytest.mark.parametrize("location", ["", "**/*.bin"])
def test_files_behind_a_link_to_a_folder_are_found(tmp_path: Path, location: str) -> None:
    elsewhere = made(tmp_path / "elsewhere", "deep/b.bin")
    folder = made(tmp_path / "source", "a.bin")
    (folder / "linked").symlink_to(elsewhere)
    assert names(folder / location, folder) == ["a.bin", "linked/deep/b.bin"]


def test_a_folder_is_read_once_and_by_its_own_name_however_many_links_lead_to_it(tmp_path: Path) -> None:
    folder = made(tmp_path / "source", "run/b.bin", "z/c.bin")
    (folder / "run" / "up").symlink_to(folder)
    (folder / "latest").symlink_to(folder / "z")
    (folder / "one").symlink_to(folder / "two")
    (folder / "two").symlink_to(folder / "one")
    assert names(folder, folder) == ["run/b.bin", "z/c.bin"]


def test_a_store_behind_a_link_is_one_file_and_comes_once(tmp_path: Path) -> None:
    folder = made(tmp_path / "source", "b.zarr/.zgroup", "b.zarr/x.bin")
    (folder / "a.zarr").symlink_to(folder / "b.zarr")
    assert find_paths(str(folder), ["*.bin"], stores=[".zgroup"])[1] == [folder / "b.zarr"]


def test_a_folder_without_permission_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = made(tmp_path / "source", "a.bin", "closed/b.bin")
    open_to_others(tmp_path)
    (folder / "closed").chmod(0)
    imports = "from convert.source.locations import find_paths"
    errors = errors_of_other_user(imports, f"find_paths({str(folder)!r}, ['*.bin'])")
    (folder / "closed").chmod(0o755)
    assert f"SourceError: {folder}/closed: cannot be read (Permission denied)" in errors


def test_a_path_that_exists_is_that_path_whatever_letters_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "run[1]*", "a.bin")
    made(tmp_path / "run1", "b.bin")
    assert names(folder, folder) == names(folder / "a.bin", folder) == ["a.bin"]
    monkeypatch.chdir(tmp_path)
    assert candidates("run1", []) == [str(tmp_path / "run1")]
    assert candidates("run1/*.bin", []) == [str(tmp_path / "run1/*.bin")]
    assert candidates("run1", ["/hub"]) == ["/hub/run1", str(tmp_path / "run1")]
    assert candidates("run2", []) == []


def test_nothing_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none: no such file or folder"):
        find_paths(str(tmp_path / "none"), ["*.bin"])
    os.mkdir(tmp_path / "empty")
    with pytest.raises(SourceError, match=r"empty: no file \*.bin in this folder"):
        find_paths(str(tmp_path / "empty"), ["*.bin"])
