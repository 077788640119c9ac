"""The state of a loader in checkpoints: the trained step, whatever wraps the batches and whoever saves them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stream
from stream.base.errors import ArgumentError, StateError
from stream.loader.loader import Loader

torch = pytest.importorskip("torch", reason="torch is not installed")

from stream.torch import StepState, StreamDataset, to_device  # noqa: E402

NUMBERS: dict[str, Any] = {"action": None, "state": None, "language": None, "frames": None}


def _loader(root: Path, mixture: str = "bridge", **arguments: Any) -> Loader:
    return stream.make_loader(root, mixture, batch_size=8, **{**NUMBERS, **arguments})


def _read_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches as Accelerate's DataLoaderShard does: the next one is taken before the current one is trained."""
    current = next(batches)
    for following in batches:
        yield current
        current = following


def _step(state: dict[str, Any]) -> int:
    return int(json.loads(state["loader"])["step"])


def test_it_is_the_state_of_the_loader_after_the_batches_that_were_returned(oxe_root: Path) -> None:
    loader = _loader(oxe_root)
    batches = to_device(loader, "cpu", prefetch=2)
    progress = StepState(batches)
    assert _step(progress.state_dict()) == progress.step == 0
    for _ in range(3):
        next(batches)
    assert json.loads(progress.state_dict()["loader"]) == loader.state_at(3)
    again = to_device(_loader(oxe_root), "cpu")
    StepState(again).load_state_dict(progress.state_dict())
    assert next(again)["sample"].tolist() == list(range(24, 32))


@pytest.mark.parametrize("source", ["iterator", "loader"])
def test_behind_a_wrapper_that_reads_ahead_it_is_the_trained_step(oxe_root: Path, source: str) -> None:
    loader = _loader(oxe_root)
    batches = to_device(loader, "cpu")
    progress = StepState(batches if source == "iterator" else loader)
    for trained, _ in zip(range(1, 7), _read_ahead(batches), strict=False):
        progress.step = trained
    assert batches.step == 7
    assert _step(progress.state_dict()) == 6


def test_of_a_loader_the_step_has_to_be_set(oxe_root: Path) -> None:
    loader = _loader(oxe_root)
    progress = StepState(loader)
    assert _step(progress.state_dict()) == 0
    next(iter(loader))
    with pytest.raises(ArgumentError, match=r"step was never set; set it after each step of training"):
        progress.state_dict()
    progress.step = 1
    assert _step(progress.state_dict()) == 1
    with pytest.raises(ArgumentError, match="step"):
        progress.step = -1


def test_a_state_of_a_dataset_moves_the_dataset(oxe_root: Path) -> None:
    dataset = StreamDataset(oxe_root, "bridge", batch_size=8, **NUMBERS)
    next(iter(dataset))
    state = StepState(dataset).state_dict()
    for taken in (state, dataset.state_dict()):
        resumed = StreamDataset(oxe_root, "bridge", batch_size=8, **NUMBERS)
        StepState(resumed).load_state_dict(taken)
        assert next(iter(resumed))["sample"].tolist() == list(range(8, 16))


def test_loading_ends_a_step_that_was_set(oxe_root: Path) -> None:
    batches = to_device(_loader(oxe_root), "cpu")
    progress = StepState(batches)
    progress.step = 5
    progress.load_state_dict(progress.state_dict())
    next(batches)
    assert progress.step == batches.step == 6


def test_states_of_another_mixture_or_batch_size_are_refused_and_of_other_ranks_are_not(oxe_root: Path) -> None:
    state = StepState(_loader(oxe_root)).state_dict()
    half = StepState(_loader(oxe_root, rank=1, world_size=2))
    half.load_state_dict(state)
    assert half.step == 0
    with pytest.raises(StateError, match="mixture"):
        StepState(_loader(oxe_root, "bridge,kuka")).load_state_dict(state)
    larger = StepState(stream.make_loader(oxe_root, "bridge", batch_size=16, **NUMBERS))
    with pytest.raises(StateError, match="batch_size: 16 was 8"):
        larger.load_state_dict(state)


@pytest.mark.parametrize("state", [None, {}, {"loader": 3}, {"loader": "{"}, {"loader": "[]"}, "text"])
def test_other_values_are_no_states(oxe_root: Path, state: Any) -> None:
    with pytest.raises(StateError, match="not a state"):
        StepState(_loader(oxe_root)).load_state_dict(state)


def test_other_sources_are_refused() -> None:
    with pytest.raises(ArgumentError, match="list: expected an iterator of batches, a StreamDataset, or a Loader"):
        StepState([])


def test_composer_s_count_of_samples_is_a_step(oxe_root: Path) -> None:
    # Composer calls dataset.state_dict(num_samples, True) for each checkpoint.
    assert _step(StepState(_loader(oxe_root)).state_dict(48, True)) == 6
    dataset = StreamDataset(oxe_root, "bridge", batch_size=8, **NUMBERS)
    for _ in zip(range(7), dataset, strict=False):
        pass
    assert [dataset.state_dict()["step"], dataset.state_dict(48, True)["step"]] == [7, 6]
    with pytest.raises(ArgumentError, match="num_samples"):
        dataset.state_dict(-1)


def test_composer_s_samples_count_from_the_first_step_of_the_pass(oxe_root: Path) -> None:
    dataset = StreamDataset(oxe_root, "bridge", batch_size=8, num_steps=4, **NUMBERS)
    dataset.seek(6)
    assert len(list(dataset)) == 2
    steps = [dataset.state_dict(num_samples)["step"] for num_samples in (16, 24, 32)]
    assert steps == [6, 7, 8]
    assert dataset.state_dict(8, from_beginning=False)["step"] == 7


def test_set_epoch_after_a_restored_state_begins_the_epoch_again(oxe_root: Path) -> None:
    # Trainers call it before the first batch; so a StreamDataset is not given to them as it is.
    dataset = StreamDataset(oxe_root, "bridge", batch_size=8, **NUMBERS)
    dataset.load_state_dict(dataset.loader.state_at(5))
    dataset.set_epoch(0)
    assert next(iter(dataset))["sample"].tolist() == list(range(8))


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_keeps_a_state_whole(oxe_root: Path, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    both = _loader(oxe_root, "bridge,kuka")
    progress = StepState(to_device(both, "cpu"))
    progress.step = 3
    dcp.save({"text": progress, "nested": both.state_at(3)}, checkpoint_id=tmp_path)
    resumed = StepState(_loader(oxe_root, "bridge,kuka"))
    dcp.load({"text": resumed}, checkpoint_id=tmp_path)
    assert resumed.step == 3
    alone = _loader(oxe_root)
    with pytest.raises(StateError, match="'kuka' is in the state only"):
        dcp.load({"text": StepState(alone)}, checkpoint_id=tmp_path)
    # The trap that the text avoids: of a nested dict only the paths of the current loader are loaded.
    nested = {"nested": alone.state_at(0)}
    dcp.load(nested, checkpoint_id=tmp_path)
    assert "kuka" not in nested["nested"]["fingerprint"]["datasets"]


def test_the_mix_in_names_the_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stream.frameworks.transformers", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match="StreamTrainerMixin needs transformers, which is not installed: pip"):
        _ = stream.torch.StreamTrainerMixin
