"""Statistics of chunks with random strides, tails and representations against loops over the steps."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np

from stream.batch.vectors import DatasetVector
from stream.sample.relative import RelativeVector
from stream.sample.relative_plan import plan_relative
from stream.statistics.chunks import ChunkSource, ChunkSteps, describe_chunks

COUNT = 1000
"""Configurations that are compared."""
DIMS = DatasetVector(("a", "b"), ("target",) * 2, None, ("joint_position",) * 2, ("rad",) * 2)
STATE = DatasetVector(("a", "b"), ("absolute",) * 2, None, ("joint_position",) * 2, ("rad",) * 2)


def chunk_steps(t: int, length: int, is_step: list[bool], steps: ChunkSteps) -> list[int | None] | None:
    """Return the steps of the chunk at t that count, None for the others; None for a chunk that is left out."""
    chosen = [t + steps.start + steps.stride * number for number in range(steps.length)]
    inside = [0 <= step < length for step in chosen]
    if steps.tails == "complete" and not all(inside):
        return None
    if steps.repeats_edges:
        return [min(max(step, 0), length - 1) for step in chosen]
    if steps.tails != "repeat":
        return [step if is_inside else None for step, is_inside in zip(chosen, inside, strict=True)]
    existing = [step for step, is_inside in zip(chosen, inside, strict=True) if is_inside and is_step[step]]
    if not existing:
        return [None] * steps.length
    return [min(max(step, existing[0]), existing[-1]) for step in chosen]


def values_of(source: ChunkSource, relative_to: str | None, steps: ChunkSteps) -> list[list[list[float]]]:
    """Return the values that count, by step of the chunk and dimension."""
    counted: list[list[list[float]]] = [[[], []] for _ in range(steps.length)]
    assert source.state is not None
    (values, mask), (state, _) = source.values, source.state
    for row in source.anchors.tolist():
        t = int(source.step[row])
        first, length = row - t, int(source.num_steps[row])
        chosen = chunk_steps(t, length, [any(row) for row in mask[first : first + length].tolist()], steps)
        for number, step in enumerate(chosen or ()):
            before = chosen[number - 1] if chosen and number else None
            for dim in range(2):
                if step is None or not mask[first + step, dim]:
                    continue
                value = float(values[first + step, dim])
                if relative_to == "state" or (relative_to == "previous" and number == 0):
                    value -= float(state[row, dim])
                elif relative_to == "previous":
                    if before is None or not mask[first + before, dim]:
                        continue
                    value -= float(values[first + before, dim])
                counted[number][dim].append(float(np.float32(value)))
    return counted


def random_source(draw: random.Random, generator: np.random.Generator, lengths: list[int]) -> ChunkSource:
    """Return episodes of random values, of which some are missing, and some of their steps as anchors."""
    total = sum(lengths)
    mask = generator.random((total, 2)) < draw.choice((1.0, 0.8))
    mask &= draw.random() < 0.5 or (generator.random((total, 1)) < 0.8)
    values, state = (generator.normal(size=(total, 2)).astype(np.float32) for _ in range(2))
    step = np.concatenate([np.arange(length) for length in lengths])
    anchors = np.flatnonzero(generator.random(total) < draw.choice((1.0, 0.7)))
    return ChunkSource((values, mask), (state, np.ones(mask.shape, bool)), step, np.repeat(lengths, lengths), anchors)


def check_pool(pool: list[float], actual: dict[str, float], context: str) -> None:
    """Check the statistics of some values."""
    assert actual["count"] == len(pool), context
    if pool:
        expected: dict[str, Any] = {"mean": np.mean(pool), "std": np.std(pool), "min": min(pool), "max": max(pool)}
        expected |= {"q01": np.quantile(pool, 0.01), "q99": np.quantile(pool, 0.99)}
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, atol=1e-6, err_msg=f"{context} {name}")


def test_statistics_of_random_chunks_are_those_of_a_loop() -> None:
    compared = 0
    for number in range(COUNT):
        draw, generator = random.Random(number), np.random.default_rng(number)
        lengths = [draw.randrange(1, 12) for _ in range(draw.randrange(1, 5))]
        steps = ChunkSteps(
            start=draw.choice((0, 0, -2, 1, 3)),
            length=draw.randrange(1, 6),
            stride=draw.choice((1, 2, 3, 5)),
            repeats_edges=draw.random() < 0.3,
            tails=draw.choice(("real", "complete", "repeat")),
        )
        relative_to: Any = draw.choice((None, "state", "previous"))
        per_step = draw.random() < 0.5
        source = random_source(draw, generator, lengths)
        conversion: RelativeVector | None = None
        if relative_to is not None:
            conversion = plan_relative(DIMS, STATE, relative_to=relative_to, context="demo")
        counted = values_of(source, relative_to, steps)
        is_counted = conversion is None and not per_step
        make = partial(source.counted, steps) if is_counted else partial(source.chunks, conversion, steps)
        numbers = describe_chunks([(1.0, make)], 2, per_step=per_step)
        for dim in range(2):
            pools = [values[dim] for values in counted]
            if not per_step:
                pools = [[value for pool in pools for value in pool]]
            if not numbers["count"].size:
                assert not any(pools)  # no chunk
                continue
            for position, pool in enumerate(pools):
                cell: Any = (position, dim) if per_step else (dim,)
                check_pool(pool, {name: values[cell] for name, values in numbers.items()}, f"{number} {steps}")
                compared += bool(pool)
    assert compared > COUNT
