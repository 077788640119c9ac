"""The code on the page of frameworks runs: Accelerate, transformers, torchdata, DCP, a DeviceMesh."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.documentation.blocks import TURNS, block_with, run_block

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def _rows(step: int) -> Any:
    return torch.arange(step * 64, (step + 1) * 64)


@pytest.mark.long
def test_accelerate(oxe_root: Path, tmp_path: Path, closing: dict[str, Any]) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    seen: list[Any] = []
    model = torch.nn.Linear(1, 1)
    names = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    names["train_step"] = lambda model, batch: seen.append(batch["sample"])
    closing |= run_block(block_with(oxe_root, "Accelerator()", **{"num_workers=4": "num_workers=1"}), names)
    torch.testing.assert_close(torch.cat(seen), torch.arange(TURNS * 64))
    closing["accelerator"].save_state(str(tmp_path))
    assert (tmp_path / "custom_checkpoint_0.pkl").is_file()
    next(closing["batches"])
    closing["accelerator"].load_state(str(tmp_path))
    torch.testing.assert_close(next(closing["batches"])["sample"], _rows(TURNS))


class _Policy(torch.nn.Module):  # type: ignore[name-defined]
    """A model that notes the samples of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[Any] = []

    def forward(self, sample: Any, action: Any, **_: Any) -> dict[str, Any]:
        self.seen.append(sample)
        return {"loss": (action.mean() - self.weight) ** 2}


@pytest.mark.long
def test_a_trainer_of_transformers(oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    quiet = partial(transformers.TrainingArguments, use_cpu=True, report_to="none", disable_tqdm=True)
    monkeypatch.setattr(transformers, "TrainingArguments", quiet)
    shorter = {"100_000": "2", "save_steps=1000": "save_steps=2", "num_workers=4": "num_workers=1"}
    code = block_with(oxe_root, "StreamTrainerMixin, Trainer)", **shorter, **{"runs/policy": str(tmp_path)})
    (later,) = re.findall(r"# later: (.*)", code)
    model, resumed = _Policy(), _Policy()
    run_block(code, {"model": model})
    torch.testing.assert_close(torch.cat(model.seen), torch.arange(2 * 64))
    code = code.replace("max_steps=2", "max_steps=3").replace("trainer.train()  #", f"{later}  #")
    run_block(code, {"model": resumed})
    torch.testing.assert_close(torch.cat(resumed.seen), _rows(2))


def test_torchdata(oxe_root: Path) -> None:
    pytest.importorskip("torchdata", reason="torchdata is not installed")
    code = block_with(oxe_root, "import StatefulDataLoader", **{"num_workers=4": "num_workers=1"})
    state = run_block(code, {"train_step": lambda *_: None, "model": None})["state"]
    resumed = run_block(code[: code.index("for batch")], {})["batches"]
    resumed.load_state_dict(state)
    torch.testing.assert_close(next(iter(resumed))["sample"], _rows(TURNS))


def test_a_distributed_checkpoint(oxe_root: Path, tmp_path: Path, group: None, closing: dict[str, Any]) -> None:
    names = {"train_step": lambda *_: None, "model": torch.nn.Linear(1, 1)}
    change = {'"cuda"': '"cpu"', "runs/fsdp/step-1000": str(tmp_path / "step"), "num_workers=4": "num_workers=1"}
    code = block_with(oxe_root, "dcp.save(", **change).replace("dcp.load(", "next(batches)\ndcp.load(")
    closing |= run_block(code, names)
    assert closing["progress"].step == TURNS
    torch.testing.assert_close(next(closing["batches"])["sample"], _rows(TURNS))
    assert json.loads(closing["progress"].state_dict()["loader"])["step"] == TURNS + 1


def test_a_device_mesh(oxe_root: Path, group: None, closing: dict[str, Any]) -> None:
    change = {'"cuda", (4, 2)': '"cpu", (1, 1)', '"cuda"': '"cpu"', "num_workers=4": "num_workers=1"}
    closing |= run_block(block_with(oxe_root, "check_ranks(loader, mesh=mesh)", **change), {})
    assert (closing["loader"].rank, closing["loader"].world_size) == (0, 1)
    torch.testing.assert_close(next(closing["batches"])["sample"], _rows(0))
