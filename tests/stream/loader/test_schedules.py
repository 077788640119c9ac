"""Mixtures whose weights change at a step."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import Select, load_loader, make_loader, samples
from stream.base.errors import ArgumentError, StateError
from stream.loader.loader import Loader
from stream.order.mix import MixTable

SCHEDULE: list[tuple[int | None, dict[str, Any]]] = [
    (10, {"bridge": 3, "kuka": 1}),
    (25, {"bridge": 1, "rt1": 1}),
    (None, {"kuka": 1}),
]
YAML = """
members: {bridge: {split: train}, kuka: {split: train}, rt1: {split: train}}
schedule:
  - {until: 10, weights: {bridge: 3, kuka: 1}}
  - {until: 25, weights: {bridge: 1, rt1: 1}}
  - {weights: {kuka: 1}}
"""


def load(root: Path, schedule: Any = SCHEDULE, **arguments: Any) -> Loader:
    return make_loader(root, schedule, batch_size=8, **arguments)


def test_each_phase_has_its_weights_from_its_first_step_on(oxe_root: Path) -> None:
    loader = load(oxe_root)
    assert loader.dataset_names == ("bridge", "kuka", "rt1")
    shares = [list(loader.weights_at(step).values()) for step in (0, 9, 10, 24, 25, 10**9)]
    first, second, third = [0.75, 0.25, 0], [0.5, 0, 0.5], [0, 1, 0]
    assert shares == [first, first, second, second, third, third]
    assert list(loader.weights.values()) == first
    phases = (range(10), range(10, 25), range(25, 40))
    counts = [Counter(ref.dataset for step in steps for ref in loader.describe(step)) for steps in phases]
    assert counts == [{"bridge": 60, "kuka": 20}, {"bridge": 60, "rt1": 60}, {"kuka": 120}]


def test_a_yaml_file_describes_the_same_schedule(oxe_root: Path, tmp_path: Path) -> None:
    (tmp_path / "soup.yaml").write_text(YAML)
    from_file, from_list = load(oxe_root, tmp_path / "soup.yaml"), load(oxe_root)
    assert from_file.state_at(30) == from_list.state_at(30)
    assert [from_file.describe(step) for step in (0, 10, 99)] == [from_list.describe(step) for step in (0, 10, 99)]


def test_epochs_continue_across_the_borders(oxe_root: Path) -> None:
    loader = load(oxe_root)
    refs = [ref for step in range(60) for ref in loader.describe(step)]
    drawn = [(ref.epoch, ref.episode, ref.step) for ref in refs if ref.dataset == "kuka"]
    size = loader.sizes["kuka"]
    assert len(drawn) > 3 * size
    for epoch in range(len(drawn) // size):
        epoch_samples = drawn[epoch * size : (epoch + 1) * size]
        assert {number for number, _, _ in epoch_samples} == {epoch}
        assert len({sample[1:] for sample in epoch_samples}) == size


def test_ranks_and_workers_share_the_batches_of_a_schedule(oxe_root: Path) -> None:
    full = load(oxe_root)
    parts = [iter(load(oxe_root, rank=rank, world_size=2, num_workers=rank)) for rank in range(2)]
    for part in parts:
        part.set_state(full.state_at(9))
    for step in (9, 10):
        rank_batches = [next(part) for part in parts]
        for key in ("frames", "sample", "dataset"):
            together = np.concatenate([batch[key] for batch in rank_batches])
            np.testing.assert_array_equal(together, full.batch_at(step)[key])
    for part in parts:
        part.close()


def test_a_step_far_away_looks_up_no_more_than_the_first(oxe_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = [(10**8, {"bridge": 1, "kuka": 1}), (None, {"kuka": 1, "rt1": 2})]
    loader = load(oxe_root, schedule, action=None, state=None, language=None)
    looked_up: list[int] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(self: Any, numbers: Any) -> Any:
            looked_up.append(np.size(numbers))
            return function(self, numbers)

        return count

    for method in ("locate", "counts_before"):
        monkeypatch.setattr(MixTable, method, counted(getattr(MixTable, method)))
    for step in (0, 10**8, 2 * 10**8):
        looked_up.clear()
        loader.batch_at(step)
        assert looked_up == [8]


def test_a_state_is_refused_only_where_the_schedules_differ_before_its_step(oxe_root: Path) -> None:
    loader = load(oxe_root)
    later = load(oxe_root, [*SCHEDULE[:2], (40, {"kuka": 1, "bridge": 5}), (None, {"rt1": 1})])
    for step in (0, 12, 25):
        assert later.step_of(loader.state_at(step)) == step
    with pytest.raises(StateError, match="weight of 'kuka' in phase 3 of the mixture: "):
        later.step_of(loader.state_at(26))
    longer = load(oxe_root, [(12, SCHEDULE[0][1]), *SCHEDULE[1:]])
    assert longer.step_of(loader.state_at(10)) == 10
    with pytest.raises(StateError, match="end of phase 1 of the mixture: None was 10; phase 2 of the mix"):
        longer.step_of(loader.state_at(11))
    # A run without a schedule goes on in one that begins alike.
    plain = load(oxe_root, {"bridge": 3, "kuka": 1})
    running = load(oxe_root, [(10, {"bridge": 3, "kuka": 1}), (None, {"bridge": 1, "rt1": 1})])
    assert running.step_of(json.loads(json.dumps(plain.state_at(10)))) == 10
    with pytest.raises(StateError):
        running.step_of(plain.state_at(11))


def test_a_schedule_survives_saving(oxe_root: Path, tmp_path: Path) -> None:
    later = {"kuka": {"select": Select(where=[("step", ">", 1)])}}
    loader = load(oxe_root, [(5, {"bridge": "size", "kuka": 2}), (None, later)])
    loader.save(tmp_path / "loader.json")
    loaded = load_loader(tmp_path / "loader.json")
    assert loaded.state_at(9) == loader.state_at(9)
    assert [loaded.describe(step) for step in (0, 5, 80)] == [loader.describe(step) for step in (0, 5, 80)]


WRONG: list[tuple[Any, str]] = [
    ([], r"mixture=\[\] names no dataset; expected "),
    ([(None, {"bridge": 0})], "phase 1: no member has a weight above 0"),
    ([(5, {"bridge": 1})], "phase 1 ends at step 5, the one before at 0; `until` grows from phase to phase, and"),
    ([(5, {"bridge": 1}), (5, {"kuka": 1}), (None, {"bridge": 1})], "phase 2 ends at step 5, the one before at 5"),
    ([(None, {"bridge": 1}), (None, {"bridge": 1})], "phase 1 ends at step None"),
    ([(0, {"bridge": 1}), (None, {"bridge": 1})], r"schedule\.0\.until: Input should be greater than or equal to 1"),
    ([(2.5, {"bridge": 1}), (None, {"bridge": 1})], r"schedule\.0\.until"),
    ([(5, {"bridge": 1}), (None, {"brigde": 1})], "no dataset 'brigde'"),
    ([(5, {"bridge": -1}), (None, {"bridge": 1})], r"schedule\.0\.weights\.bridge: found -1"),
    ([(10**18, {"bridge": 1}), (None, {"kuka": 1})], "a phase ends at step 1,000,000,000,000,000,000; expected at mo"),
    ([(5, {"bridge": {"split": "x"}}), (None, {"bridge": {"split": "y"}})], "member 'bridge' has split in a phase, an"),
]


@pytest.mark.parametrize(("schedule", "message"), WRONG, ids=str)
def test_a_wrong_schedule_is_one_clear_error(schedule: Any, message: str, oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(oxe_root, schedule)


def test_a_step_that_is_none_is_refused(oxe_root: Path) -> None:
    loader = load(oxe_root, SCHEDULE)
    methods: list[Any] = [loader.weights_at, loader.state_at, loader.batch_at, loader.describe]
    for step, method in itertools.product(["3", -1, 1.5], methods):
        with pytest.raises(ArgumentError, match=f"step={step!r}; expected a whole number >= 0"):
            method(step)


def test_single_samples_have_no_schedule(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match="the mixture has a schedule in steps of batches; make_loader takes it"):
        samples(oxe_root, SCHEDULE)  # type: ignore[arg-type]
