"""Exit codes and errors of the benchmark commands."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench.measure.child import ChildFailed
from bench.measure.points import Point, Prepared, Repeated, study
from bench.measure.tables import figure, point_table
from stream.base.arguments import run_command
from stream.base.errors import ArgumentError, RingError


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ArgumentError("no dataset\n'x'"), 2, "error: no dataset 'x'\n"),
        (ChildFailed("ended with exit code 3"), 1, "error: ended with exit code 3\n"),
        (RingError("no memory"), 1, "error: no memory\n"),
        (PermissionError(13, "Permission denied", "/there/file"), 1, "error: /there/file: Permission denied\n"),
        (OSError(28, "No space left on device"), 1, "error: out: No space left on device\n"),
        (KeyError("of ours"), None, ""),
        (KeyboardInterrupt(), 130, "interrupted; go on\n"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(
    error: BaseException, code: int | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    if code is None:
        with pytest.raises(type(error)):
            run_command(work, path="out")
    else:
        assert run_command(work, path="out", interrupted="interrupted; go on") == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(("error", "code"), [(None, 0), ("ended with exit code 3", 1)])
def test_a_point_that_failed_is_in_the_exit_code(
    error: str | None, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(point: Point) -> dict[str, Any]:
        if point.name == "bad" and error:
            raise ChildFailed(error)
        return {"rate": 2.5}

    command = study(
        name="tiny",
        about="",
        options=Repeated,
        prepare=lambda options: nullcontext(Prepared(points=[Point("good", {}), Point("bad", {})], measure=measure)),
        describe=str,
        table=lambda result: point_table(result["points"], {"rate": figure("rate", form=".1f")}, []),
    )
    assert command.main(["--out", str(tmp_path / "out"), "--repeat", "2"]) == code
    header, good, bad, *message = capsys.readouterr().out.splitlines()
    assert (header.split(), good.split()) == (["point", "rate"], ["good", "2.5"])
    assert bad.split() == ["bad", "failed" if error else "2.5"]
    assert message == ([f"bad failed: {error}"] if error else [])
    result = json.loads((tmp_path / "out" / "tiny.json").read_text())
    assert [len(point["repeats"]) for point in result["points"]] == [2, 0 if error else 2]
