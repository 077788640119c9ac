"""Formulas of trainers, written a second time from their papers' equations, on chunks with episode ends.

Their own code was run beside ours on 10,000 chunks; docs/trainers.md has the differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stream.sample.relative import RelativeVector
from stream.sample.relative_plan import plan_relative
from stream.sample.rotations import from_matrix, to_matrix
from stream.statistics.affine import Affine
from stream.statistics.chunks import ChunkSource, ChunkSteps, Tails, describe_chunks
from stream.statistics.methods import METHODS
from stream.statistics.vectors import VectorStatistics
from tests.stream.sample.test_relative import JOINTS, vector

LENGTHS = (3, 9, 14, 5)
WIDTH = 5
ROWS_POSE = (("ee_position", 3), ("ee_rotation_rot6d_rows", 6), ("gripper", 1))
VECTOR_POSE = (("ee_position", 3), ("ee_rotation_axis_angle", 3), ("gripper", 1))


def plan(parts: Any, **options: Any) -> RelativeVector:
    arguments = {"relative_to": "state", "context": "demo", **options}
    return plan_relative(vector("target", *parts), vector("absolute", *parts), **arguments)


def walk(parts: Any, seed: int) -> np.ndarray:
    """Return the steps of all episodes, float32 [N, D]."""
    generator = np.random.default_rng(seed)
    steps = generator.normal(size=(sum(LENGTHS), sum(size for _, size in parts)))
    if parts[0][0] == "ee_position":
        form = {"ee_rotation_rot6d_rows": "rot6d_rows", "ee_rotation_axis_angle": "rotvec"}[parts[1][0]]
        turns = to_matrix(generator.normal(size=(len(steps), 4)), "quat_xyzw")
        steps[:, 3:-1] = from_matrix(turns, form)  # type: ignore[arg-type]
    return steps.astype(np.float32)


def source(action: np.ndarray, state: np.ndarray) -> ChunkSource:
    columns = [(values, np.ones(values.shape, bool)) for values in (action, state)]
    step = np.concatenate([np.arange(length) for length in LENGTHS])
    return ChunkSource(columns[0], columns[1], step, np.repeat(LENGTHS, LENGTHS), np.arange(len(step)))


def convert(
    conversion: RelativeVector, action: np.ndarray, state: np.ndarray, tails: Tails, *, per_step: bool = True
) -> tuple[np.ndarray, Any]:
    """Return the chunks of all anchors, and their statistics."""

    def chunks() -> Any:
        return source(action, state).chunks(conversion, ChunkSteps(start=0, length=WIDTH, tails=tails))

    numbers: Any = describe_chunks([(1.0, chunks)], len(conversion.names), per_step=per_step)
    numbers.pop("count")
    return np.concatenate([values for values, _ in chunks()]), VectorStatistics(conversion.names, 1, **numbers)


def anchors(tails: Tails) -> list[tuple[int, list[int]]]:
    """Return the row of each anchor and of the actions of its chunk, the last one repeated."""
    rows = []
    for length, first in zip(LENGTHS, np.cumsum((0, *LENGTHS)).tolist()[:-1], strict=True):
        for step in range(length if tails == "repeat" else max(0, length - WIDTH + 1)):
            rows.append((first + step, [first + min(step + ahead, length - 1) for ahead in range(WIDTH)]))
    return rows


def affine_of(method: str, statistics: VectorStatistics, kept: list[bool] | None = None) -> Affine:
    kept_dims = np.array(kept or [False] * statistics.mean.shape[-1])
    mask = METHODS[method].mask(statistics, kept_dims=kept_dims, flag_dims=np.zeros(len(kept_dims), bool))
    masked = VectorStatistics(**{**vars(statistics), "mask": mask})
    table = Affine.identity(1, *mask.shape)
    METHODS[method].fill(table, 0, masked, clip=METHODS[method].clip)
    return Affine(*(column[0] for column in vars(table).values()))


@pytest.mark.parametrize("tails", ["repeat", "complete"])
def test_joints_of_openpi_and_lerobot(tails: Tails) -> None:
    """openpi counts repeated tails in its statistics, LeRobot complete chunks; both subtract in float32."""
    action, state = walk(JOINTS, 0), walk(JOINTS, 1)
    expected = np.stack([action[rows] for _, rows in anchors(tails)])
    expected[..., :6] -= state[[row for row, _ in anchors(tails)], None, :6]
    values, statistics = convert(plan(JOINTS), action, state, tails, per_step=False)
    np.testing.assert_array_equal(values, expected)
    pooled = expected.reshape(-1, 7).astype(np.float64)
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(getattr(statistics, name), getattr(pooled, name)(axis=0), atol=1e-7)


@pytest.mark.parametrize("parts", [ROWS_POSE, VECTOR_POSE])
def test_poses_of_gr00t_with_the_range_of_each_step(parts: Any) -> None:
    action, state = walk(parts, 2), walk(parts, 3)
    conversion = plan(parts, poses="body", rotation="rot6d_rows")
    values, statistics = convert(conversion, action, state, "complete")

    def matrix(row: np.ndarray) -> np.ndarray:
        transform = np.eye(4)
        form: Any = "rot6d_rows" if parts is ROWS_POSE else "rotvec"
        transform[:3, 3], transform[:3, :3] = row[:3], to_matrix(row[3:-1], form)
        return transform

    expected = np.zeros((len(anchors("complete")), WIDTH, 10))
    for number, (row, rows) in enumerate(anchors("complete")):
        for step, action_row in enumerate(rows):
            relative = np.linalg.inv(matrix(state[row])) @ matrix(action[action_row])
            expected[number, step] = [*relative[:3, 3], *relative[0, :3], *relative[1, :3], action[action_row, -1]]
    np.testing.assert_allclose(values, expected, atol=1e-6)
    np.testing.assert_allclose(statistics.min, values.min(axis=0), atol=1e-7)
    table = affine_of("gr00t", statistics)
    low, high = values.min(axis=0).astype(np.float64), values.max(axis=0)
    np.testing.assert_allclose(table.apply(values), 2 * (values - low) / (high - low) - 1, atol=1e-6)
    back = conversion.backward(
        table.inverse().apply(table.apply(values)), state[[row for row, _ in anchors("complete")]]
    )
    np.testing.assert_allclose(back, np.stack([action[rows] for _, rows in anchors("complete")]), atol=1e-5)


def numbers_of(low: list[float], high: list[float]) -> VectorStatistics:
    least, largest = np.array(low), np.array(high)
    mean = (least + largest) / 2
    return VectorStatistics(
        names=tuple("abc"), count=2, mean=mean, std=largest - mean, min=least, max=largest, q01=least, q99=largest
    )


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("gr00t", [[0, 0, -1], [0, 0, 1], [0, 0, 1]]),
        ("umi", [[0, -1, -1], [1e-3, 0.6, 1], [0.5, 199, 3]]),
        ("min_max", [[0.3, -1, -1], [0.301, 0.6, 1], [0.8, 1, 1]]),
    ],
)
def test_dimensions_that_do_not_vary_follow_the_rule_of_their_trainer(method: str, expected: list[list[float]]) -> None:
    """A constant, a range of 0.005 around 1,000 (constant for numpy.isclose) and an ordinary one; beyond it too."""
    statistics = numbers_of([0.3, 1000.0, 5.0], [0.3, 1000.005, 6.0])
    values = np.array([[0.3, 1000.0, 5.0], [0.301, 1000.004, 6.0], [0.8, 1000.5, 7.0]])
    np.testing.assert_allclose(affine_of(method, statistics).apply(values), expected, atol=1e-6)


def test_a_range_below_1e_7_is_constant_for_umi() -> None:
    table = affine_of("umi", numbers_of([0.0, 0.0, 0.0], [5e-8, 2e-7, 1.0]))
    np.testing.assert_allclose(table.apply(np.array([[1e-8, 1e-7, 0.25]])), [[1e-8, 0.0, -0.5]], atol=1e-12)
    np.testing.assert_allclose(table.inverse().apply(np.array([[1e-8, 0.0, -0.5]])), [[1e-8, 1e-7, 0.25]], atol=1e-12)


def test_rotations_keep_their_values_for_umi_and_grippers_for_octo() -> None:
    assert METHODS["umi"].kept_patterns("state") == ("ee_rotation_*",)
    assert METHODS["octo"].kept_patterns("action") == ("gripper",) and not METHODS["octo"].kept_patterns("state")
    assert METHODS["gr00t"].kept_patterns("action") == ()
