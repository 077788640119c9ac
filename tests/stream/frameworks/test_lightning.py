"""The DataModule under a real Trainer: its checkpoints go on with the batch after the last one trained on."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream.base.errors import ArgumentError, StateError
from tests.installed import needs

pytestmark = [pytest.mark.filterwarnings("ignore"), needs("lightning")]


def _lightning() -> Any:
    return importlib.import_module("lightning.pytorch")


def _model(fail_at: int = -1) -> Any:
    from tests.stream.frameworks.lightning_model import CountingModel

    return CountingModel(fail_at)


def _module(root: Path, **arguments: Any) -> Any:
    from stream.torch import StreamDataModule

    return StreamDataModule(root, "bridge", batch_size=4, **arguments)


def _trainer(folder: Path, *callbacks: Any, every: int = 2, **arguments: Any) -> Any:
    pl = _lightning()
    checkpoints = pl.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=every)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(
        accelerator="cpu", devices=1, default_root_dir=folder, callbacks=[checkpoints, *callbacks], **quiet, **arguments
    )


def _fit(folder: Path, data: Any, *callbacks: Any, ckpt_path: Path | None = None, **arguments: Any) -> list[int]:
    model = _model()
    _trainer(folder, *callbacks, **arguments).fit(model, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return model.trained


def test_a_fit_continues_with_the_batch_after_the_last_one_trained_on(oxe_root: Path, tmp_path: Path) -> None:
    assert _fit(tmp_path, _module(oxe_root), max_steps=6) == [0, 1, 2, 3, 4, 5]
    assert _fit(tmp_path, _module(oxe_root), max_steps=8, ckpt_path=tmp_path / "step=4.ckpt") == [4, 5, 6, 7]
    assert _fit(tmp_path, _module(oxe_root), max_steps=9, ckpt_path=tmp_path / "step=8.ckpt") == [8]


def test_with_accumulated_gradients_batches_count_not_optimizer_steps(oxe_root: Path, tmp_path: Path) -> None:
    data = _module(oxe_root)
    assert _fit(tmp_path, data, max_steps=2, accumulate_grad_batches=3) == [0, 1, 2, 3, 4, 5]
    assert data.state_dict()["train"]["step"] == data.step == 6
    more: dict[str, Any] = {"accumulate_grad_batches": 3, "ckpt_path": tmp_path / "step=2.ckpt"}
    assert _fit(tmp_path, _module(oxe_root), max_steps=3, **more) == [6, 7, 8]


def test_an_epoch_continues_where_the_last_one_stopped(oxe_root: Path, tmp_path: Path) -> None:
    assert _fit(tmp_path, _module(oxe_root), max_epochs=2, limit_train_batches=3) == [0, 1, 2, 3, 4, 5]
    resumed = _fit(tmp_path, _module(oxe_root), max_epochs=3, limit_train_batches=3, ckpt_path=tmp_path / "step=4.ckpt")
    assert resumed == [4, 5, 6, 7, 8]


def test_num_steps_are_the_batches_of_an_epoch(oxe_root: Path, tmp_path: Path) -> None:
    data = _module(oxe_root, num_steps=3)
    assert len(data.train_dataloader()) == 3
    assert _fit(tmp_path, data, max_epochs=2) == [0, 1, 2, 3, 4, 5]
    resumed = _fit(tmp_path, _module(oxe_root, num_steps=3), max_epochs=3, ckpt_path=tmp_path / "step=4.ckpt")
    assert resumed == [4, 5, 6, 7, 8]


def test_a_loader_that_was_looked_at_beforehand_learns_its_ranks_later(
    oxe_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _module(oxe_root)
    assert data.loader.action_names["bridge"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    data.setup("fit")
    assert (data.loader.rank, data.loader.world_size) == (1, 2)
    assert next(iter(data.train_dataloader()))["sample"].tolist() == [2, 3]


def test_validation_is_left_out_unless_it_has_a_split(oxe_root: Path, tmp_path: Path) -> None:
    data = _module(oxe_root)
    assert data.val_dataloader() == []
    assert _fit(tmp_path, data, max_steps=2) == [0, 1]
    with pytest.raises(ArgumentError, match="val_steps=2 without val_split; give the split of validation"):
        _module(oxe_root, val_steps=2)


def test_a_batch_at_which_the_model_failed_is_trained_on_again(oxe_root: Path, tmp_path: Path) -> None:
    keep = _lightning().callbacks.OnExceptionCheckpoint(tmp_path, filename="failed")
    trainer = _trainer(tmp_path, keep, max_steps=6)
    with pytest.raises(RuntimeError, match="the model failed"):
        trainer.fit(_model(fail_at=3), datamodule=_module(oxe_root))
    assert _fit(tmp_path, _module(oxe_root), max_steps=5, ckpt_path=tmp_path / "failed.ckpt") == [3, 4]


def test_each_validation_gives_the_same_batches_of_its_own_split(oxe_root: Path, tmp_path: Path) -> None:
    data = _module(oxe_root, split="train[:50%]", val_split="train[50%:]", val_steps=2)
    model = _model()
    trainer = _trainer(tmp_path, max_steps=4, val_check_interval=2, check_val_every_n_epoch=None)
    trainer.fit(model, datamodule=data, weights_only=True)
    assert model.trained == [0, 1, 2, 3]
    assert model.validated == [0, 1] * 3  # the Trainer's check beforehand, and twice in training
    assert len(data.val_dataloader()) == 2
    assert _fit(tmp_path, data, max_steps=6, ckpt_path=tmp_path / "step=4.ckpt", limit_val_batches=0) == [4, 5]


def test_a_checkpoint_of_another_seed_is_refused(oxe_root: Path, tmp_path: Path) -> None:
    _fit(tmp_path, _module(oxe_root), max_steps=2)
    with pytest.raises(StateError, match="seed: 1 was 0"):
        _fit(tmp_path, _module(oxe_root, seed=1), max_steps=4, ckpt_path=tmp_path / "step=2.ckpt")


@pytest.mark.long
def test_frames_are_augmented_where_the_trainer_moves_them(oxe_root: Path, tmp_path: Path) -> None:
    import stream

    frames = stream.Frames(augment="openpi")
    arguments: dict[str, Any] = {"val_split": "train[:50%]", "val_steps": 1, "frames": frames}
    data, model = _module(oxe_root, augment="device", **arguments), _model()
    _trainer(tmp_path, max_steps=2, limit_train_batches=1).fit(model, datamodule=data)
    loaders = {
        name: stream.make_loader(oxe_root, "bridge", batch_size=4, split=split, frames=frames)
        for name, split in (("train", "train"), ("val", "train[:50%]"))
    }
    assert set(model.frames) == {"train 0", "train 1", "val 0"}
    for name, pictures in model.frames.items():
        split, step = name.split()
        expected = loaders[split].batch_at(int(step))["frames"].astype(int)
        stored = loaders[split].augmenting_on_device().batch_at(int(step))["frames"]
        assert np.abs(pictures - expected).max() <= 2
        assert np.abs(pictures - stored.astype(int)).max() > 50


def test_a_device_augments_no_encoded_frames(oxe_root: Path) -> None:
    import stream

    data = _module(oxe_root, augment="device", frames=stream.Frames(augment="openpi", decode="device"))
    with pytest.raises(ArgumentError, match=r"augment='device' with decode='device'.*take decode='host'"):
        data.train_dataloader()
    with pytest.raises(ArgumentError, match="augment='gpu'; expected one of 'host', 'device'"):
        _module(oxe_root, augment="gpu")
