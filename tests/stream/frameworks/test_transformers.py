"""The Trainer of transformers with the mix-in: batches as they are, states in its checkpoints, seeking on resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stream.base.errors import ArgumentError, StateError
from tests.stream.transforms import Noise

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from stream.torch import StreamDataset, StreamTrainerMixin  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


class _Trainer(StreamTrainerMixin, transformers.Trainer):  # type: ignore[name-defined]
    """A Trainer with the mix-in."""


class _Model(torch.nn.Module):  # type: ignore[name-defined]
    """One weight; it notes the first sample of each batch that it is trained on, and of each that it evaluates."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained: list[int] = []
        self.evaluated: list[int] = []

    def forward(self, sample: Any, action: Any, **_: Any) -> dict[str, Any]:
        (self.trained if self.training else self.evaluated).append(int(sample[0]))
        return {"loss": (action.mean() - self.weight) ** 2, "logits": action}


def _dataset(root: Path, mixture: str = "bridge", **arguments: Any) -> StreamDataset:
    options: dict[str, Any] = {"batch_size": 4, "frames": None, "state": None, "language": None, **arguments}
    return StreamDataset(root, mixture, **options)


def _train(dataset: Any, out: Path, steps: int, *, resume: bool = False, **arguments: Any) -> tuple[_Model, Any]:
    """Train to a step, and return the model and the Trainer."""
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_steps": 1}
    evaluation = {name: arguments.pop(name) for name in ("eval_dataset",) if name in arguments}
    training_arguments = transformers.TrainingArguments(str(out), max_steps=steps, **{**quiet, **arguments})
    model = _Model()
    trainer = _Trainer(model, training_arguments, train_dataset=dataset, **evaluation)
    trainer.train(resume_from_checkpoint=resume)
    return model, trainer


def _saved_step(out: Path, step: int) -> int:
    state = json.loads((out / f"checkpoint-{step}/trainer_state.json").read_text())
    return int(state["stateful_callbacks"]["StreamStateCallback"]["attributes"]["loader_state"]["step"])


def test_accumulated_batches_count_and_a_resume_seeks_to_the_next_one(oxe_root: Path, tmp_path: Path) -> None:
    model, _ = _train(_dataset(oxe_root), tmp_path, 5, gradient_accumulation_steps=4)
    assert model.trained == list(range(0, 80, 4))
    assert _saved_step(tmp_path, 5) == 20
    dataset = _dataset(oxe_root)
    model, trainer = _train(dataset, tmp_path, 6, resume=True, gradient_accumulation_steps=4)
    assert model.trained == list(range(80, 96, 4))
    assert dataset.loader.stats()["samples"] <= 4 * (4 + 1)  # nothing is read again; one batch is moved ahead
    assert trainer.args.ignore_data_skip and trainer.state.global_step == 6
    model, _ = _train(_dataset(oxe_root), tmp_path, 7, resume=True, gradient_accumulation_steps=2)
    assert model.trained == [96, 100]


def test_epochs_of_the_trainer_are_passes_of_the_dataset(oxe_root: Path, tmp_path: Path) -> None:
    model, trainer = _train(_dataset(oxe_root, num_steps=4), tmp_path, 6)
    assert model.trained == list(range(0, 24, 4))
    assert trainer.state.num_train_epochs == 2
    model, _ = _train(_dataset(oxe_root, num_steps=4), tmp_path, 10, resume=True)
    assert model.trained == list(range(24, 40, 4))
    with pytest.raises(ArgumentError, match=r"num_steps=4 .* gradient_accumulation_steps=3; give a multiple"):
        _train(_dataset(oxe_root, num_steps=4), tmp_path / "other", 1, gradient_accumulation_steps=3)


def test_a_second_training_begins_at_the_first_batch(oxe_root: Path, tmp_path: Path) -> None:
    model, trainer = _train(_dataset(oxe_root), tmp_path, 2)
    trainer.train()
    assert model.trained == [0, 4, 0, 4]


def test_a_checkpoint_without_a_state_continues_after_its_batches(oxe_root: Path, tmp_path: Path) -> None:
    _train(_dataset(oxe_root), tmp_path, 2, gradient_accumulation_steps=2)
    path = tmp_path / "checkpoint-2/trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["StreamStateCallback"]
    path.write_text(json.dumps(state))
    model, _ = _train(_dataset(oxe_root), tmp_path, 3, resume=True, gradient_accumulation_steps=2)
    assert model.trained == [16, 20]


def test_a_checkpoint_of_another_order_is_refused(oxe_root: Path, tmp_path: Path) -> None:
    _train(_dataset(oxe_root), tmp_path, 1)
    with pytest.raises(StateError, match="seed: 1 was 0"):
        _train(_dataset(oxe_root, seed=1), tmp_path, 2, resume=True)


def test_a_state_stays_if_the_trainer_restores_callbacks(oxe_root: Path, tmp_path: Path) -> None:
    _train(_dataset(oxe_root), tmp_path, 2)
    options: dict[str, Any] = {"restore_callback_states_from_checkpoint": True}
    model, _ = _train(_dataset(oxe_root), tmp_path, 3, resume=True, **options)
    assert model.trained == [8] and _saved_step(tmp_path, 3) == 3


def test_every_evaluation_has_the_same_batches_and_moves_no_training(oxe_root: Path, tmp_path: Path) -> None:
    val = _dataset(oxe_root, "kuka", num_steps=2)
    options: dict[str, Any] = {
        "eval_dataset": {"kuka": val},
        "eval_strategy": "steps",
        "eval_steps": 1,
        "label_names": ["action"],
    }
    model, trainer = _train(_dataset(oxe_root), tmp_path, 2, **options)
    assert model.trained == [0, 4] and model.evaluated == [0, 4, 0, 4]
    assert "eval_kuka_loss" in trainer.evaluate()
    with pytest.raises(ArgumentError, match="the StreamDataset of evaluation has no end; give it num_steps"):
        trainer.evaluate(_dataset(oxe_root))


def test_other_datasets_load_as_without_the_mix_in(tmp_path: Path) -> None:
    rows = [{"sample": torch.tensor(number), "action": torch.zeros(2)} for number in range(8)]
    options: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "train_sampling_strategy": "sequential",
        "eval_dataset": rows,
    }
    model, trainer = _train(rows, tmp_path, 4, **options)
    assert model.trained == [0, 2, 4, 6]
    trainer.evaluate()
    assert model.evaluated == [0]


def test_random_transforms_need_the_same_ranks(oxe_root: Path, tmp_path: Path) -> None:
    _train(_dataset(oxe_root, transforms=[Noise()]), tmp_path, 1)
    path = tmp_path / "checkpoint-1/trainer_state.json"
    path.write_text(path.read_text().replace('"random_ranks": 1', '"random_ranks": 2'))
    with pytest.raises(StateError, match="the state is of 2 ranks, this loader of 1"):
        _train(_dataset(oxe_root, transforms=[Noise()]), tmp_path, 2, resume=True)
