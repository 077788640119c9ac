"""Failed points of the benchmark commands, and the order in which points are measured."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench.measure.child import ChildFailed
from bench.measure.points import Point, Prepared, Repeated, measure_points, study
from bench.measure.tables import figure, point_table


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


def test_repeats_alternate_and_a_failing_point_is_left_out_from_then_on() -> None:
    points = [Point(name, {"name": name}) for name in "abc"]
    order: list[str] = []
    lines: list[str] = []

    def measure(point: Point) -> dict[str, Any]:
        order.append(point.name)
        if point.name == "b":
            raise ChildFailed("no memory")
        return {"rate": float(len(order))}

    list(measure_points(points, measure, repeat=2, describe=lambda run: f"{run['rate']:.0f}", report=lines.append))
    assert order == ["a", "b", "c", "c", "a"]
    assert [point.error for point in points] == [None, "no memory", None]
    assert points[0].runs == [{"rate": 1.0}, {"rate": 5.0}]
    assert lines[0].startswith("1/6 a: 1") and lines[1].startswith("2/6 b: error: no memory")
    assert points[1].as_dict()["median"] is None
