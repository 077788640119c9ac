"""Tests of atomic writes."""

from pathlib import Path

import pytest

from stream.storage.files import write_whole


@pytest.mark.parametrize(("content", "wanted"), [("größer\n", "größer\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_a_file_is_replaced_by_text_or_bytes(tmp_path: Path, content: str | bytes, wanted: bytes) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    write_whole(path, content)
    assert path.read_bytes() == wanted
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_it(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "text")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_what_cannot_be_written_leaves_what_there_was(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "taken", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
