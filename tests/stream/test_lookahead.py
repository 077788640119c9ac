"""Rows that are looked up before their batches are asked for are those that are looked up with them."""

from __future__ import annotations

import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stream.lookahead
import stream.metadata
from stream import digest, make_loader
from stream.batch import Assembler
from stream.format import FormatError
from stream.lookahead import Lookahead
from stream.metadata import Describer
from stream.mixed import Options, open_mixture
from stream.rows import Rows, Share
from tests.stream.test_damage import flip_first_frame

STEPS, BATCH = 12, 24
PARTS: list[Share] = [(0, 9), (9, 24)]


@pytest.fixture
def _packed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream.metadata, "_PACK_AFTER", 1)
    monkeypatch.setattr(stream.metadata, "_ROWS_A_LOOKUP", 10**9)


def planned(root: Path, mixture: Any = "oxe29", **options: Any) -> tuple[Assembler, Rows]:
    """What assembles a mixture, and the rows of its first steps."""
    data = open_mixture(root, mixture, split="train", options=Options(**options))
    return Assembler(data.spec), data.plan.rows(data.plan.batch_samples(0, STEPS * BATCH))


def lookahead_of(assembler: Assembler) -> Lookahead:
    assert assembler._lookahead is not None
    return assembler._lookahead


def is_known(assembler: Assembler, step: int, part: Share) -> bool:
    return lookahead_of(assembler).describe(step, part, assembler.empty(part[1] - part[0])) is not None


def made(assembler: Assembler, rows: Rows, at: tuple[int, Share] | None = None) -> str:
    out = assembler.empty(len(rows))
    for values in out.values():
        values[...] = 77
    done = assembler.finish(assembler.begin(rows, out, planned=at))
    assert not done.failed
    return digest({**out, **done.arrays, **done.texts})


def part_of(rows: Rows, step: int, part: Share) -> Rows:
    return rows.cut(step * BATCH + part[0], step * BATCH + part[1])


@pytest.mark.usefixtures("_packed_at_once")
@pytest.mark.parametrize(
    "options",
    [{}, {"horizon": 3}, {"horizon": 40, "action": "mean"}, {"action": "first", "samples_per_episode": 2}],
)
def test_parts_are_the_same_looked_up_before_or_with_their_batch(oxe_root: Path, options: dict[str, Any]) -> None:
    assembler, rows = planned(oxe_root, **options)
    expected = [[made(assembler, part_of(rows, step, part)) for part in PARTS] for step in range(STEPS)]
    # Each shard was asked for by now.
    assembler.plan(100, rows, steps=STEPS)
    found = [
        [made(assembler, part_of(rows, step, part), (100 + step, part)) for part in PARTS] for step in range(STEPS)
    ]
    assert found == expected
    for part in PARTS:
        assert is_known(assembler, 100 + STEPS - 1, part)


@pytest.mark.usefixtures("_packed_at_once")
def test_what_is_prepared_says_where_all_records_lie(oxe_root: Path) -> None:
    assembler, rows = planned(oxe_root, {"bridge": 1, "kuka": 1})
    made(assembler, rows)
    assembler.plan(0, rows, steps=STEPS)
    described = lookahead_of(assembler).describe(3, (2, 20), assembler.empty(18))
    assert described is not None
    part = part_of(rows, 3, (2, 20))
    for place, shard, record in zip(described.records, part.shard, part.record, strict=True):
        file = assembler._cache[int(shard)].file
        assert place is not None
        assert file.read(0, place) == file.read(int(record))


@pytest.mark.usefixtures("_packed_at_once")
def test_batches_with_rows_of_shards_that_are_not_open_are_left(oxe_root: Path) -> None:
    assembler, rows = planned(oxe_root, {"bridge": 10, "kuka": 1})
    # Those of kuka are not: none of its records was asked for.
    bridge = np.flatnonzero(rows.member == 0)
    made(assembler, Rows(*(getattr(rows, name)[bridge] for name in ("sample", "member", "epoch", "shard", "record"))))
    assembler.plan(0, rows, steps=STEPS)
    part = (0, 6)
    alone = [bool((part_of(rows, step, part).member == 0).all()) for step in range(STEPS)]
    assert 2 < sum(alone) < STEPS
    assert [is_known(assembler, step, part) for step in range(STEPS)] == alone
    fresh, _ = planned(oxe_root, {"bridge": 10, "kuka": 1})
    for step in range(STEPS):
        assert made(assembler, part_of(rows, step, part), (step, part)) == made(fresh, part_of(rows, step, part))


@pytest.mark.parametrize("options", [{}, {"horizon": 40, "action": "mean"}])
def test_rows_of_open_shards_are_looked_up_too(oxe_root: Path, options: dict[str, Any]) -> None:
    """Each by itself: nothing is packed after so few."""
    weights = {"bridge": 5, "kuka": 5, "toto": 2}
    assembler, rows = planned(oxe_root, weights, **options)
    expected = [made(assembler, part_of(rows, step, (0, 6))) for step in range(STEPS)]
    assembler.plan(0, rows, steps=STEPS)
    for step in range(STEPS):
        assert is_known(assembler, step, (0, 6))
        assert made(assembler, part_of(rows, step, (0, 6)), (step, (0, 6))) == expected[step]


def test_a_row_that_cannot_be_looked_up_fails_with_its_batch(oxe_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream.metadata, "_PACK_AFTER", 10**9)
    assembler, rows = planned(oxe_root, {"bridge": 10, "kuka": 1})
    made(assembler, rows)
    look_up, kuka = Describer._look_up, set(rows.shard[rows.member == 1].tolist())

    def broken(describer: Describer, index: int, *others: Any) -> Any:
        if index in kuka:
            raise FormatError("not readable")
        return look_up(describer, index, *others)

    monkeypatch.setattr(Describer, "_look_up", broken)
    assembler.plan(0, rows, steps=STEPS)
    for step in range(STEPS):
        part = part_of(rows, step, (0, 6))
        bad = np.flatnonzero(part.member == 1).tolist()
        assert is_known(assembler, step, (0, 6)) == (not bad)
        done = assembler.finish(assembler.begin(part, assembler.empty(6), planned=(step, (0, 6))))
        assert [row for row, _ in done.failed] == bad
    assert kuka


@pytest.mark.usefixtures("_packed_at_once")
def test_only_planned_steps_are_prepared_and_the_last_plan_counts(oxe_root: Path) -> None:
    assembler, rows = planned(oxe_root, {"bridge": 1})
    made(assembler, rows)
    part = (0, BATCH)
    assert not is_known(assembler, 0, part)
    assembler.plan(5, rows, steps=STEPS)
    assert [step for step in range(30) if is_known(assembler, step, part)] == list(range(5, 5 + STEPS))
    assembler.plan(50, rows.cut(BATCH, 5 * BATCH), steps=4)
    assert not is_known(assembler, 5, part)
    out = assembler.empty(BATCH)
    assert lookahead_of(assembler).describe(51, part, out) is not None
    np.testing.assert_array_equal(out["sample"], part_of(rows, 2, part).sample)


@pytest.mark.usefixtures("_packed_at_once")
def test_parts_may_move_a_little_and_not_for_ever(oxe_root: Path) -> None:
    assembler, rows = planned(oxe_root, {"bridge": 1})
    fresh, _ = planned(oxe_root, {"bridge": 1})
    made(assembler, rows)
    assembler.plan(0, rows, steps=STEPS)
    parts: list[Share] = [(8, 16), (7, 15), (7, 17), (8, 9), (6, 16), (0, 8), (16, 23), (9, 20), (2, 5), (17, 23)]
    for step, part in enumerate(parts):
        assert made(assembler, part_of(rows, step, part), (step, part)) == made(fresh, part_of(rows, step, part))
    # With an eighth more on either side, which is nothing of seven rows.
    stretches = [(known.first, known.stop) for known in lookahead_of(assembler)._known]
    assert stretches == [(7, 17), (5, 17), (0, 9), (16, 23)]
    assert [is_known(assembler, 11, part) for part in ((9, 20), (6, 17), (1, 9))] == [False, True, True]
    assembler.plan(50, rows, steps=STEPS)
    assert not lookahead_of(assembler)._known


@pytest.mark.usefixtures("_packed_at_once")
@pytest.mark.parametrize(
    ("batches", "known"), [(5, [True] * 10 + [False] * 2), (2, [False] * STEPS), (0, [False] * STEPS)]
)
def test_memory_bounds_how_many_are_looked_up_together(
    oxe_root: Path, batches: int, known: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve batches five at a time leave two, which are not worth it."""
    assembler, rows = planned(oxe_root, {"bridge": 1})
    made(assembler, rows)
    row = sum(values.nbytes for name, values in assembler.empty(1).items() if name != "frames")
    monkeypatch.setattr(stream.lookahead, "_BYTES", BATCH * row * batches + 1)
    assembler.plan(0, rows, steps=STEPS)
    found = [is_known(assembler, step, (0, BATCH)) for step in range(STEPS)]
    assert found == known


def test_an_assembler_goes_with_its_last_user(oxe_root: Path) -> None:
    """And so do the files that it holds open, without a garbage collection."""
    assembler, _ = planned(oxe_root, {"bridge": 1})
    there = weakref.ref(assembler)
    gc.disable()
    try:
        del assembler
        assert there() is None
    finally:
        gc.enable()


def test_workers_that_look_ahead_replace_the_same_records(oxe_root: Path, tmp_path: Path) -> None:
    """Long enough for workers to have packed the shards, of which one has a record that cannot be read."""
    shutil.copytree(oxe_root / "bridge", tmp_path / "bridge")
    (path,) = (tmp_path / "bridge").glob("*/train/*-00001-of-*.arrayrecord")
    flip_first_frame(path, record=2)
    loader = make_loader(tmp_path, {"bridge": 1}, batch_size=16, num_workers=2, on_error="replace", seed=5)
    steps = 2 * loader.steps.together
    iterator = iter(loader)
    found = [digest(next(iterator)) for _ in range(steps)]
    iterator.close()
    assert loader.stats()["replaced"] > 5
    assert found == [digest(loader.batch_at(step)) for step in range(steps)]
