"""Tests of atomic writes of files and folders."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pairstream.browse.marks import Marks
from pairstream.replay.batch_html import write_page
from stream.base.errors import ArgumentError, FormatError
from stream.base.reading import read_limited
from stream.storage.files import new_folder, write_atomically
from tests.fixtures.faults.disk import Disk


@pytest.mark.parametrize(("content", "expected"), [("größer\n", "größer\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_a_file_is_replaced_by_text_or_bytes(tmp_path: Path, content: str | bytes, expected: bytes) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    write_atomically(path, content)
    assert path.read_bytes() == expected
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk with the folder of the test, whose power may be cut."""
    (tmp_path / "file").write_text("old")
    disk = Disk(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda file: disk.sync(file if isinstance(file, int) else file.fileno()))
    return disk


def test_a_written_file_survives_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    write_atomically(tmp_path / "file", "new")
    assert list(disk.survivors()) == [{"file": b"new"}]


def test_new_folders_of_a_file_survive_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    write_atomically(tmp_path / "a" / "b" / "new", "text", parents=True)
    assert list(disk.survivors()) == [{"file": b"old", "a": None, "a/b": None, "a/b/new": b"text"}]


def test_a_new_folder_survives_a_power_cut_with_all_of_its_files(tmp_path: Path, disk: Disk) -> None:
    with new_folder(tmp_path / "new") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "first").write_text("1")
        (folder / "second").write_text("2")
    files = {"new/inner/first": b"1", "new/second": b"2"}
    assert list(disk.survivors()) == [{"file": b"old", "new": None, "new/inner": None, **files}]


def test_others_may_read_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "text")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_what_cannot_be_written_leaves_what_there_was(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "taken", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_folder_appears_when_its_block_has_ended(tmp_path: Path) -> None:
    with new_folder(tmp_path / "new") as folder:
        (folder / "file").write_text("text")
        assert not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "file"]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_folder_whose_block_fails_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), new_folder(tmp_path / "new") as folder:
        (folder / "file").write_text("text")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_replaces_nothing(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="exists already"), new_folder(tmp_path):
        pass
    with pytest.raises(ArgumentError, match="was made by another program"), new_folder(tmp_path / "new"):
        (tmp_path / "new").write_text("theirs")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_atomically(path, "text", parents=True),
        lambda path: new_folder(path).__enter__(),
        lambda path: write_page(path, "step", {}, [], title="step"),
        lambda path: Marks(path, []),
    ],
)
def test_nothing_is_written_to_an_address(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"^s3://bucket/new: expected a local path; write it there"):
        write(Path("s3://bucket/new"))
    assert not list(tmp_path.iterdir())


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_limited(path, 5) == b"12345"
    with pytest.raises(FormatError, match="larger than 4 bytes"):
        read_limited(path, 4)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="device or pipe"):
            read_limited(path, 5)
    with pytest.raises(IsADirectoryError) as folder:
        read_limited(tmp_path, 5)
    assert folder.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_limited(tmp_path / "nowhere", 5)
