"""The order in which points are measured, and what becomes of those that fail."""

from __future__ import annotations

from typing import Any

from bench.measure.child import ChildFailed
from bench.measure.points import Point, measure_points


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
