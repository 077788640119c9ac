"""Folders of sources: links, folders without permission, globs, and paths with any letters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from convert.errors import SourceError
from convert.source.places import candidates, find_paths
from tests.fixtures.command import REPOSITORY
from tests.fixtures.faults.other_user import open_to_others


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
    code = (
        "import os, sys\n"
        "from convert.source.places import find_paths\n"
        "os.setuid(65534) if os.getuid() == 0 else None\n"
        f"find_paths({str(folder)!r}, ['*.bin'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    (folder / "closed").chmod(0o755)
    assert f"SourceError: {folder}/closed: cannot be read (Permission denied)" in done.stderr


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
