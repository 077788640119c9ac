"""The training loops of the pages run: PyTorch, Lightning, JAX, Grain, public trainers."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from stream import make_loader
from tests.documentation.blocks import TURNS, block_with, run_block


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


def test_a_policy(torch: Any, frames_root: Path, tmp_path: Path) -> None:
    seen: list[Any] = []
    change = {'"cuda"': '"cpu"', "build/demo/frames": str(frames_root), "build/policy": str(tmp_path)}
    code = block_with(frames_root, "images, actions, real", **change)
    run_block(code, {"train_step": lambda model, *arguments: seen.append(arguments), "model": None})
    for images, actions, real in seen:
        assert (images.shape[0], images.ndim, images.shape[-1]) == (64, 4, 3)
        assert actions.shape == real.shape == (64, 16, 13)
        assert not actions[~real].any()
    assert len(seen) == TURNS and (tmp_path / "loader.json").exists()


def test_a_torch_loop(torch: Any, oxe_root: Path, closing: dict[str, Any]) -> None:
    seen: list[Any] = []
    code = block_with(oxe_root, '"cuda")  # copies', **{'"cuda"': '"cpu"'})
    closing |= run_block(code, {"train_step": lambda model, batch: seen.append(batch["frames"]), "model": None})
    assert [type(frames) for frames in seen] == [torch.Tensor] * TURNS
    assert closing["batches"].get_state()["step"] == TURNS


def test_epochs_of_a_torch_dataset(torch: Any, oxe_root: Path) -> None:
    seen: list[Any] = []
    change = {"num_workers=4, num_steps=1000": "num_workers=1, num_steps=2"}
    code = block_with(oxe_root, "num_workers=4, num_steps=1000", **change)
    names = run_block(code, {"train_step": lambda model, batch: seen.append(batch["sample"]), "model": None})
    torch.testing.assert_close(torch.cat(seen), torch.arange(TURNS * 2 * 64))
    assert names["state"]["step"] == 2 * TURNS


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_lightning(torch: Any, oxe_root: Path, halves: str, tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from tests.stream.frameworks.test_lightning import _model

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = functools.partial(pl.Trainer, **quiet, default_root_dir=tmp_path)
    names = {"Trainer": trainer, "ModelCheckpoint": pl.callbacks.ModelCheckpoint}
    shorter = {"batch_size=64": "batch_size=16", "val_steps=20": "val_steps=2", "100_000": "4", "1000": "2"}
    code = block_with(oxe_root, "StreamDataModule", **shorter, **{'"oxe29"': halves, "runs/one": str(tmp_path)})
    (later,) = re.findall(r"# later: (.*)", code)
    model, resumed = _model(), _model()
    run_block(code, {**names, "model": model})
    assert len(model.trained) == 4
    code = code.replace("max_steps=4", "max_steps=6").replace("trainer.fit(model, datamodule=data)  #", f"{later}  #")
    run_block(code, {**names, "model": resumed})
    # Its own numbers are of batches of 4.
    assert [step // 4 for step in resumed.trained] == [4, 5]


def test_a_jax_loop(oxe_root: Path, closing: dict[str, Any]) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from jax.sharding import NamedSharding, PartitionSpec

    seen: list[Any] = []

    def train_step(state: int, frames: Any, action: Any) -> tuple[int, float]:
        seen.append((frames, action))
        return state + 1, 0.0

    names = {"NamedSharding": NamedSharding, "PartitionSpec": PartitionSpec, "train_step": train_step, "state": 0}
    closing |= run_block(block_with(oxe_root, "stream.jax"), {**names, "mesh": jax.make_mesh((1,), ("data",))})
    assert closing["state"] == len(seen) == TURNS
    assert all(isinstance(array, jax.Array) for pair in seen for array in pair)


def test_a_loop_of_grain(oxe_root: Path) -> None:
    names = run_block(block_with(oxe_root, "SampleSource", **{"worker_count=2": "worker_count=0"}), {})
    assert names["batch"]["frames"].shape[:2] == (8, 2)
    assert isinstance(names["state"], bytes)


def test_an_augmentation(oxe_root: Path) -> None:
    loader = run_block(block_with(oxe_root, "Brighten"), {})["loader"]
    plain = make_loader(oxe_root, "oxe29", batch_size=64).batch_at(0)["frames"]
    assert loader.batch_at(0)["frames"].dtype == plain.dtype
    assert (loader.batch_at(0)["frames"] != plain).any()


def test_batches_of_trainers(torch: Any, frames_root: Path, tmp_path: Path) -> None:
    root = {"build/demo/frames": str(frames_root)}
    names = run_block(block_with(frames_root, 'openpi.sample("pi05"', **root), {})
    assert names["batch"]["image"]["base_0_rgb"].shape == (32, 224, 224, 3)
    assert names["batch"]["actions"].shape == (32, 50, 32)
    names = run_block(
        block_with(frames_root, "openvla.examples(", **root, **{"run/": f"{tmp_path}/"}), {"make_loader": make_loader}
    )
    assert len(names["rows"]) == 16 and (tmp_path / "dataset_statistics.json").is_file()
    assert names["tensors"]["observation.images.wrist"].shape == (8, 2, 3, 64, 64)
    assert set(names["stats"]) >= {"action", "observation.state"}
    assert set(names["inputs"]) >= {"observation.images.wrist", "observation.state"} and set(names["outputs"]) == {
        "action"
    }


def test_validation(oxe_root: Path, halves: str) -> None:
    code = block_with(oxe_root, 'split="val", batch', **{"step % 1000 == 999": "step % 2 == 1", '"oxe29"': halves})
    names = run_block(code, {"make_loader": make_loader, "root": oxe_root})
    assert names["step"] == TURNS - 1
    assert names["held_out"]["sample"][0] == (TURNS - 1) * 64


def test_a_complete_pass(oxe_root: Path) -> None:
    seen: list[int] = []

    def evaluate(model: Any, batch: dict[str, Any]) -> Any:
        seen.extend(batch["sample"].tolist())
        return batch["sample"]

    train = make_loader(oxe_root, "bridge,kuka", split="train[:75%]", batch_size=8)
    names = run_block(block_with(oxe_root, "shared_episodes("), {"loader": train, "evaluate": evaluate, "model": None})
    assert seen == list(range(sum(names["val"].sizes.values())))


def test_resuming(oxe_root: Path, closing: dict[str, Any]) -> None:
    with_loader = {"loader": make_loader(oxe_root, "bridge", batch_size=8, num_workers=1)}
    closing |= run_block(block_with(oxe_root, "iterator.get_state()"), with_loader)
    assert closing["iterator"].step == closing["state"]["step"] == 0
