"""Passes of StreamDataset: each goes on where the last one ended, also through DataLoader, devices and states."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import stream
from stream.base.errors import ArgumentError

torch = pytest.importorskip("torch", reason="torch is not installed")

from stream.torch import StreamDataset, to_device  # noqa: E402

Pass = Callable[[StreamDataset], Iterable[dict[str, Any]]]

WAYS: dict[str, Pass] = {
    "for": lambda dataset: dataset,
    "DataLoader": lambda dataset: torch.utils.data.DataLoader(dataset, batch_size=None),
    "to_device": lambda dataset: to_device(dataset, "cpu", prefetch=2),
}


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
def way(request: pytest.FixtureRequest) -> Pass:
    return request.param


@pytest.fixture
def dataset(oxe_root: Path) -> StreamDataset:
    return _make(oxe_root, num_steps=3)


def _make(root: Path, **arguments: Any) -> StreamDataset:
    return StreamDataset(root, "bridge", **{"batch_size": 4, "num_workers": stream.Workers(threads=1), **arguments})


def _steps(batches: Iterable[dict[str, Any]], count: int = 9) -> list[int]:
    return [int(batch["sample"][0]) // 4 for _, batch in zip(range(count), batches, strict=False)]


def test_each_pass_continues_where_the_last_one_ended(dataset: StreamDataset, way: Pass) -> None:
    assert [_steps(way(dataset)) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_pass_that_was_left_is_finished_by_the_next_one(dataset: StreamDataset, way: Pass) -> None:
    assert _steps(way(dataset), 1) == [0]
    assert _steps(way(dataset)) == [1, 2]
    assert _steps(way(dataset)) == [3, 4, 5]


def test_an_epoch_that_is_set_begins_at_its_first_step(dataset: StreamDataset, way: Pass) -> None:
    dataset.set_epoch(2)
    assert dataset.state_dict()["step"] == 6
    assert _steps(way(dataset)) == [6, 7, 8]
    for _ in range(2):  # as for validation
        dataset.set_epoch(0)
        assert _steps(way(dataset)) == [0, 1, 2]
    assert _steps(way(dataset)) == [3, 4, 5]


def test_a_state_continues_to_the_end_of_its_pass(dataset: StreamDataset, oxe_root: Path, way: Pass) -> None:
    assert _steps(way(dataset)) + _steps(way(dataset), 1) == [0, 1, 2, 3]
    resumed = _make(oxe_root, num_steps=3)
    resumed.load_state_dict(dataset.state_dict())
    assert [_steps(way(resumed)) for _ in range(2)] == [[4, 5], [6, 7, 8]]


def test_a_state_that_is_set_on_an_iterator_counts_for_its_dataset(dataset: StreamDataset) -> None:
    batches = to_device(dataset, "cpu")
    batches.set_state(dataset.loader.state_at(7))
    assert dataset.state_dict()["step"] == 7
    assert _steps(batches) == [7, 8]
    assert _steps(to_device(dataset, "cpu")) == [9, 10, 11]


def test_iterators_that_nobody_uses_move_nothing(dataset: StreamDataset) -> None:
    dataset.set_epoch(1)
    for _ in range(3):
        iter(torch.utils.data.DataLoader(dataset, batch_size=None))
    assert _steps(dataset) == [3, 4, 5]


def test_without_num_steps_iterations_continue_without_end(oxe_root: Path) -> None:
    dataset = _make(oxe_root)
    assert [_steps(dataset, 4), _steps(dataset, 2)] == [[0, 1, 2, 3], [4, 5]]
    dataset.set_epoch(0)
    assert _steps(dataset, 2) == [0, 1]
    with pytest.raises(ArgumentError, match="epoch 1: the first pass has no end; give StreamDataset num_steps"):
        dataset.set_epoch(1)
    for epoch in (-1, 1.5, "1"):
        with pytest.raises(ArgumentError, match=r"epoch=.*expected a whole number >= 0"):
            dataset.set_epoch(epoch)  # type: ignore[arg-type]
    assert _steps(_make(oxe_root, num_steps=0)) == []


def test_complete_epochs_start_again_when_they_have_ended(oxe_root: Path, way: Pass) -> None:
    dataset = _make(oxe_root, split="train[:1]", batch_size=8, num_epochs=1)
    size = dataset.loader.sizes["bridge"]
    for _ in range(2):
        assert [sample for batch in way(dataset) for sample in batch["sample"].tolist()] == list(range(size))


def test_a_plain_loader_repeats_its_steps_as_grain_does(oxe_root: Path) -> None:
    loader = stream.make_loader(oxe_root, "bridge", batch_size=4, num_steps=2)
    assert [_steps(loader) for _ in range(2)] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "multiprocessing_context": "fork"}])
def test_a_dataloader_with_a_batch_size_is_refused(dataset: StreamDataset, workers: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="makes batches of StreamDataset's batches; give it batch_size=None"):
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=16, **workers)))


@pytest.mark.long
def test_a_dataset_that_makes_rows_of_batches_may_be_collated(oxe_root: Path) -> None:
    class Rows(torch.utils.data.IterableDataset[Any]):  # type: ignore[name-defined]
        def __iter__(self) -> Any:
            for batch in _make(oxe_root, num_steps=2):
                yield from batch["sample"]

    batches = torch.utils.data.DataLoader(Rows(), batch_size=2)
    assert [row for batch in batches for row in batch.tolist()] == list(range(8))


@pytest.mark.long
@pytest.mark.parametrize("persistent", [False, True])
def test_in_a_dataloader_s_worker_the_error_says_which_num_workers_to_set(
    dataset: StreamDataset, persistent: bool
) -> None:
    workers = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": persistent}
    with pytest.raises(RuntimeError, match="DataLoader num_workers=0 and StreamDataset num_workers=N"):
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, **workers)))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_dataloader_continues_where_it_was(oxe_root: Path) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def resume(state: Any = None) -> Any:
        batches = torchdata.StatefulDataLoader(_make(oxe_root, num_steps=3), batch_size=None)
        if state is not None:
            batches.load_state_dict(state)
        return batches

    first = resume()
    assert _steps(first) + _steps(first, 1) == [0, 1, 2, 3]
    second = resume(first.state_dict())
    assert [_steps(second) for _ in range(2)] == [[4, 5], [6, 7, 8]]
    assert _steps(resume(second.state_dict())) == [9, 10, 11]
    with pytest.raises(ArgumentError, match="batch_size=None"):
        next(iter(torchdata.StatefulDataLoader(_make(oxe_root), batch_size=16)))
