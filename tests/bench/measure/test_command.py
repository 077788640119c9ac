"""Exit codes and errors of the benchmark commands."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.measure.child import ChildFailed
from bench.measure.command import run_command, run_points
from stream.storage.errors import ArgumentError, RingError


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ArgumentError("no dataset\n  'x'"), 2, "error: no dataset 'x'\n"),
        (ChildFailed("ended with exit code 3"), 1, "error: ended with exit code 3\n"),
        (RingError("no memory"), 1, "error: no memory\n"),
        (PermissionError(13, "Permission denied", "/there/file"), 1, "error: /there/file: Permission denied\n"),
        (OSError(28, "No space left on device"), 1, "error: out: No space left on device\n"),
        (KeyError("of ours"), None, ""),
        (KeyboardInterrupt(), 130, "interrupted; go on\n"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(
    error: BaseException, code: int | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    if code is None:
        with pytest.raises(type(error)):
            run_command(work, place="out")
    else:
        assert run_command(work, place="out", interrupted="interrupted; go on") == code
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(("error", "code"), [(None, 0), ("ended with exit code 3", 1)])
def test_a_point_that_failed_is_in_the_exit_code(
    error: str | None, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = argparse.Namespace(out=tmp_path / "out", json=False)
    assert run_points(options, lambda options: {"points": [{"error": error}]}, lambda result: "a table") == code
    assert capsys.readouterr().out == "a table\n"
    assert options.out.is_dir()
