import os
from pathlib import Path

import pytest

from stream.base.errors import FormatError
from stream.base.reading import read_limited


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
