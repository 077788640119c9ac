"""Success is told by a folder of a path, and by nothing else in it."""

from __future__ import annotations

import pytest

from convert.shard.success import path_success


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/success/1.h5", True),
        ("gs://lab/failure/day/1.h5", False),
        ("success/1.h5", True),
        ("/data/success", None),
        ("failure", None),
        ("/data/failure/success", False),
        ("/data/success/failure/1.h5", None),
        ("/data/successes/1.h5", None),
        ("/data/1-success.h5", None),
        ("", None),
    ],
)
def test_a_folder_named_success_or_failure_tells_it(path: str, expected: bool | None) -> None:
    assert path_success(path) is expected
