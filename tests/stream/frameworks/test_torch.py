"""PyTorch: the dataset's state, batches on a device, normalisation, and a DataModule that resumes exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stream
from stream.base.errors import ArgumentError, StateError, WorkerError
from stream.loader.loader import Loader
from tests.stream.transforms import FailsAt

torch = pytest.importorskip("torch", reason="torch is not installed")

from stream.torch import Normalize, StreamDataset, as_tensors, to_device  # noqa: E402

MIXTURE = {"bridge": 2, "rt1": 1}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def dataset(oxe_root: Path) -> StreamDataset:
    return StreamDataset(oxe_root, MIXTURE, batch_size=4, num_workers=stream.Workers(threads=1))


@pytest.fixture
def loader(oxe_root: Path) -> Loader:
    return stream.make_loader(oxe_root, MIXTURE, batch_size=4, num_workers=stream.Workers(threads=1))


def _samples(batch: dict[str, Any]) -> list[int]:
    return batch["sample"].tolist()


def _take(batches: Any, count: int) -> list[list[int]]:
    return [_samples(batch) for _, batch in zip(range(count), batches, strict=False)]


def _steps(first: int, end: int) -> list[list[int]]:
    return [list(range(4 * step, 4 * step + 4)) for step in range(first, end)]


def _assert_same(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    assert batch.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            assert isinstance(batch[key], torch.Tensor)
            np.testing.assert_array_equal(batch[key].numpy(), value, err_msg=key)
        else:
            assert batch[key] == value


def test_the_dataset_gives_the_loader_s_batches_as_tensors(dataset: StreamDataset, loader: Loader) -> None:
    for step, batch in zip(range(3), dataset, strict=False):
        _assert_same(batch, loader.batch_at(step))
    batch = loader.batch_at(0)
    assert as_tensors(batch)["frames"].data_ptr() == batch["frames"].ctypes.data


def test_the_state_is_that_of_the_batches_handed_out_before_during_and_after(oxe_root: Path) -> None:
    dataset = StreamDataset(oxe_root, MIXTURE, batch_size=4, num_steps=4)
    assert dataset.state_dict()["step"] == 0
    batches = iter(dataset)
    assert dataset.state_dict()["step"] == 0
    next(batches)
    assert dataset.state_dict()["step"] == 1
    assert _take(batches, 9) == _steps(1, 4)
    assert dataset.state_dict()["step"] == 4


def test_a_state_is_small_json_and_iterating_continues_from_it(oxe_root: Path, dataset: StreamDataset) -> None:
    _take(dataset, 3)
    text = json.dumps(dataset.state_dict())
    assert len(text) < 2000
    resumed = StreamDataset(oxe_root, MIXTURE, batch_size=4, num_workers=stream.Workers(threads=1))
    resumed.load_state_dict(json.loads(text))
    assert resumed.state_dict()["step"] == 3
    assert _take(resumed, 2) == _steps(3, 5)
    assert _take(resumed, 2) == _steps(5, 7)


def test_loading_while_iterating_is_for_the_next_iterator(dataset: StreamDataset, oxe_root: Path) -> None:
    batches = iter(dataset)
    next(batches)
    dataset.load_state_dict(dataset.loader.state_at(7))
    assert _samples(next(batches)) == _steps(1, 2)[0]
    assert _take(dataset, 1) == _steps(7, 8)
    other_order = StreamDataset(oxe_root, MIXTURE, batch_size=4, seed=1)
    with pytest.raises(StateError, match="seed: 0 was 1"):
        dataset.load_state_dict(other_order.state_dict())


def test_batches_come_to_the_cpu_in_order_with_the_state_of_those_handed_out(loader: Loader) -> None:
    batches = to_device(loader, "cpu", prefetch=3)
    for step in range(4):
        _assert_same(next(batches), loader.batch_at(step))
        assert batches.get_state()["step"] == batches.step == step + 1
    # Only then is this about batches that were fetched and not handed out.
    assert loader.stats()["batches"] == 4 + 3


def test_going_to_a_state_drops_what_was_fetched_ahead(loader: Loader) -> None:
    batches = to_device(loader, "cpu", prefetch=2)
    _take(batches, 3)
    state = batches.get_state()
    _take(batches, 4)
    batches.set_state(state)
    assert _take(batches, 2) == _steps(3, 5)


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_loader_with_an_end_gives_all_of_its_batches(oxe_root: Path, prefetch: int) -> None:
    loader = stream.make_loader(oxe_root, MIXTURE, batch_size=4, num_steps=3)
    batches = to_device(loader, "cpu", prefetch=prefetch)
    assert _take(batches, 9) == _steps(0, 3)
    with pytest.raises(StopIteration):
        next(batches)
    batches.seek(1)
    assert _take(batches, 9) == _steps(1, 3)


def test_batches_that_another_takes_from_the_iterator_are_fetched_again(loader: Loader) -> None:
    source = iter(loader)
    source.seek(6)
    assert _take(to_device(source, "cpu"), 2) == _steps(6, 8)
    source.seek(0)
    batches = to_device(source, "cpu", prefetch=2)
    assert _take(batches, 2) == _steps(0, 2)
    assert _samples(next(source)) == _steps(4, 5)[0]
    assert _take(batches, 4) == _steps(2, 6)


def test_an_error_comes_at_its_step_and_stays_until_a_state_is_set(oxe_root: Path) -> None:
    loader = stream.make_loader(oxe_root, MIXTURE, batch_size=4, transforms=[FailsAt(12)])
    batches = to_device(loader, "cpu", prefetch=4)
    assert [_samples(next(batches)) for _ in range(3)] == _steps(0, 3)
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"step 3.*(\n.*)*sample 12 is unlucky"):
            next(batches)
        assert batches.get_state()["step"] == 3
    batches.set_state(loader.state_at(4))
    assert _take(batches, 2) == _steps(4, 6)


def test_batches_of_worker_processes_come_to_the_device(oxe_root: Path, loader: Loader) -> None:
    workers = stream.make_loader(oxe_root, MIXTURE, batch_size=4, num_workers=1)
    batches = to_device(workers, "cpu", prefetch=2)
    kept = [next(batches) for _ in range(10)]
    batches.close()
    for step, batch in enumerate(kept):
        _assert_same(batch, loader.batch_at(step))


def test_what_is_no_loader_and_no_device_is_refused(loader: Loader) -> None:
    with pytest.raises(ArgumentError, match="list: expected a Loader of make_loader"):
        to_device([1, 2], "cpu")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="prefetch=-1; expected a whole number >= 0"):
        to_device(loader, "cpu", prefetch=-1)
    with pytest.raises(ArgumentError, match="device cuda:99: torch sees"):
        to_device(loader, "cuda:99")
    for device in ("x", None):
        with pytest.raises(ArgumentError, match=f"device={device!r}: "):
            to_device(loader, device)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("pin_memory", [None, False])
def test_batches_are_complete_on_cuda_while_the_ring_is_used_again(loader: Loader, pin_memory: bool | None) -> None:
    batches = to_device(loader, "cuda", prefetch=2, pin_memory=pin_memory)
    kept = [next(batches) for _ in range(40)]
    for step, batch in enumerate(kept):
        assert batch["frames"].device.type == "cuda"
        _assert_same(
            {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in batch.items()}, loader.batch_at(step)
        )
    assert loader.stats()["ring_slots"] < 16


@pytest.mark.parametrize("method", ["mean_std", "q01_q99"])
@pytest.mark.parametrize("reduce", [None, "first"])
def test_normalising_tensors_gives_what_normalising_arrays_gives(oxe_root: Path, method: Any, reduce: Any) -> None:
    loader = stream.make_loader(oxe_root, "oxe29", batch_size=58, action=stream.Vector(reduce=reduce))
    normalize = stream.Normalize(loader, method=method)
    batch = loader.batch_at(0)
    expected = normalize.map(batch)
    result = Normalize(normalize.tables)(as_tensors(batch))
    for key in ("action", "state"):
        assert (expected[key] != batch[key]).any()
        assert result[key].dtype == torch.float32
        np.testing.assert_allclose(result[key].numpy(), expected[key], rtol=1e-6, atol=1e-6)
    assert result["frames"] is not None and result["language"] == batch["language"]


def test_the_tables_move_with_the_model_and_are_in_its_state_dict(loader: Loader) -> None:
    module = Normalize(stream.Normalize(loader, keys=("action",)).tables)
    assert set(module.state_dict()) == {f"action_{part}" for part in ("centre", "scale", "shift", "low", "high")}
