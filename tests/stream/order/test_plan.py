import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream.base.errors import ArgumentError
from stream.format.catalog import Catalog, Dataset
from stream.order.mix import MixSchedule, build_mix
from stream.order.plan import Plan
from stream.order.rows import ROW_NAMES, Rows
from stream.order.sample_index import SampleIndex
from stream.order.shuffle import Shuffle
from tests.stream.index_root import write_dataset
from tests.stream.order.test_sample_index import open_member

Stored = Callable[..., Dataset]
SHUFFLES = ["global", "none", "block:1", "block:2", "block:7", "block:32", "block:100000000"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Write datasets with a shard for each size, each of one episode with so many pairs."""
    root = tmp_path_factory.mktemp("plan")

    def write(name: str, *sizes: int) -> Dataset:
        folder = root / "-".join(map(str, sizes))
        write_dataset(folder, name, {"train": [[size + 1] for size in sizes]}, offset=1, size=(1, 1))
        return Catalog(folder).open(name)

    return functools.cache(write)


@functools.cache
def mixed(weights: tuple[float, ...]) -> MixSchedule:
    return MixSchedule([build_mix(weights)])


def make_plan(
    datasets: list[Dataset], *, weights: list[float] | None = None, shuffle: str = "global", seed: int = 0, **view: Any
) -> Plan:
    mix = mixed(tuple(weights or [1.0] * len(datasets)))
    sample_index = SampleIndex([open_member(dataset, "train") for dataset in datasets], **view)
    return Plan(mix, sample_index, seed=seed, shuffle=Shuffle.parse(shuffle))


def epoch(plan: Plan, number: int) -> np.ndarray:
    """Return the records of an epoch of a plan of one dataset, as numbers in storage order."""
    size = int(plan.sample_index.sizes[0])
    rows = plan.rows(np.arange(number * size, (number + 1) * size))
    assert (rows.epoch == number).all()
    return rows.record


def same(first: Rows, second: Rows) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ROW_NAMES)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_in_a_mixture_every_dataset_goes_through_epochs_of_its_own(stored: Stored, shuffle: str) -> None:
    sizes = {"a": 30, "b": 7, "c": 200}
    plan = make_plan([stored(name, size) for name, size in sizes.items()], weights=[1, 3, 0.5], shuffle=shuffle)
    rows = plan.rows(np.arange(5_000))
    for member, size in enumerate(sizes.values()):
        mine = rows.member == member
        num_epochs = mine.sum() // size
        assert num_epochs >= 2
        records = rows.record[mine][: num_epochs * size].reshape(num_epochs, size)
        assert (np.sort(records, axis=1) == np.arange(size)).all()
        assert rows.epoch[mine].tolist() == (np.arange(mine.sum()) // size).tolist()
        assert set(rows.split[mine]) == {member}


@pytest.mark.parametrize("shuffle", [text for text in SHUFFLES if text != "none"])
def test_epochs_and_seeds_and_datasets_have_orders_of_their_own(stored: Stored, shuffle: str) -> None:
    plan = make_plan([stored("a", 100)], shuffle=shuffle)
    orders = [epoch(plan, number) for number in range(4)]
    orders += [epoch(make_plan([stored("a", 100)], shuffle=shuffle, seed=seed), 0) for seed in (1, 2, -1)]
    orders.append(epoch(make_plan([stored("b", 100)], shuffle=shuffle), 0))
    for number, order in enumerate(orders):
        for earlier in orders[:number]:
            assert (order == earlier).mean() < 0.3


@pytest.mark.parametrize("block", [2, 5, 16, 33])
def test_blocks_are_neighbours_in_storage_drawn_together(stored: Stored, block: int) -> None:
    size = 205
    plan = make_plan([stored("a", 100, 5, 100)], shuffle=f"block:{block}")
    order = epoch(plan, 0)
    starts = []
    for first in range(0, size, block):
        drawn = order[first : first + block]
        starts.append(drawn.min())
        assert sorted(drawn) == list(range(starts[-1], starts[-1] + len(drawn)))
    num_blocks = size // block
    assert sorted(starts[:num_blocks]) == list(range(0, num_blocks * block, block))
    assert starts != sorted(starts)
    assert order.tolist() != sorted(order)
    assert epoch(plan, 1)[:block].min() != starts[0] or epoch(plan, 2)[:block].min() != starts[0]


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_the_order_does_not_depend_on_how_samples_are_asked_for(stored: Stored, shuffle: str) -> None:
    def plan() -> Plan:
        return make_plan([stored("a", 30, 5), stored("b", 7), stored("c", 200)], weights=[1, 2, 3], shuffle=shuffle)

    samples = np.arange(900, 1_100)
    together = plan().rows(samples)
    for way in (np.random.default_rng(0).permutation(200), np.repeat(np.arange(200), 2)):
        rows = plan().rows(samples[way])
        assert same(rows, Rows(together.table[way]))
    used = plan()
    singles = [used.rows(samples[sample : sample + 1]) for sample in range(200)]
    assert same(Rows(np.concatenate([single.table for single in singles])), together)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("far", [10**12, 2**60])
def test_far_samples_are_as_good_as_the_first(stored: Stored, shuffle: str, far: int) -> None:
    plan = make_plan([stored("a", 30, 7)], shuffle=shuffle)
    assert sorted(epoch(plan, far // 37)) == list(range(37))
    mixed = make_plan([stored("a", 37), stored("b", 11)], weights=[3, 1], shuffle=shuffle)
    rows = mixed.rows(np.arange(far, far + 1_000))
    assert rows.sample.tolist() == list(range(far, far + 1_000))
    assert np.bincount(rows.member).tolist() == [750, 250]
    assert (rows.record < np.array([37, 11])[rows.member]).all()


def test_ranks_take_neighbouring_blocks_of_the_global_batch(stored: Stored) -> None:
    plan = make_plan([stored("a", 10)])
    blocks = [plan.batch_samples(3, 12, rank, 4).tolist() for rank in range(4)]
    assert blocks == [[36, 37, 38], [39, 40, 41], [42, 43, 44], [45, 46, 47]]
    assert plan.batch_samples(3, 12).tolist() == [sample for block in blocks for sample in block]
    assert plan.batch_samples(4, 12)[0] == 48


@pytest.mark.parametrize("step", [-1, 2**61, 10**30])
def test_a_step_out_of_range_is_refused(stored: Stored, step: int) -> None:
    with pytest.raises(ArgumentError, match=r"step .*expected 0 to"):
        make_plan([stored("a", 10)]).batch_samples(step, 8)


@pytest.mark.parametrize("samples_per_episode", [0, 3])
def test_replacements_are_drawn_from_the_view_of_the_same_dataset(oxe_root: Path, samples_per_episode: int) -> None:
    chosen = {"bridge": "train[1:2]", "kuka": "train[:75%]"}
    members = [open_member(Catalog(oxe_root).open(name), split) for name, split in chosen.items()]

    def plan(seed: int = 0) -> Plan:
        sample_index = SampleIndex(members, samples_per_episode=samples_per_episode)
        return Plan(mixed((1, 2)), sample_index, seed=seed, shuffle=Shuffle.parse("global"))

    rows = plan().rows(np.arange(300))
    allowed = set(zip(rows.split, rows.record, strict=True))
    samples = np.arange(0, 300, 3)
    attempts = [plan().replacements(samples, attempt) for attempt in (1, 2, 3)]
    for replaced in attempts:
        assert replaced.sample.tolist() == samples.tolist()
        assert replaced.member.tolist() == rows.member[::3].tolist()
        assert replaced.epoch.tolist() == rows.epoch[::3].tolist()
        assert set(zip(replaced.split, replaced.record, strict=True)) <= allowed
    assert same(attempts[0], plan().replacements(samples, 1))
    assert same(attempts[0].cut(5, 6), plan().replacements(samples[5:6], 1))
    assert not same(attempts[0], attempts[1])
    assert not same(attempts[0], plan(seed=1).replacements(samples, 1))


@pytest.mark.parametrize("text", ["", "Global", "block", "block:0", "block:-1", "block:1.5", "block:01", " none", None])
def test_an_unknown_shuffle_is_refused(text: Any) -> None:
    with pytest.raises(ArgumentError, match=r"shuffle=.*block:N"):
        Shuffle.parse(text)
