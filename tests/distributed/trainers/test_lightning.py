"""Lightning's ``ddp``: each rank trains on its rows, and a checkpoint goes on in another number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import run_ranks
from tests.installed import needs

pytestmark = needs("lightning")


def _fit(root: Path, folder: Path, devices: int, max_steps: int, ckpt: str = "") -> list[dict[str, Any]]:
    task = {"root": str(root), "folder": str(folder), "devices": devices, "max_steps": max_steps, "ckpt": ckpt}
    run_ranks("trainers.lightning_rank", 1, batch_size=8, **task)
    names = [f"to-{max_steps}-rank-{rank}-of-{devices}.json" for rank in range(devices)]
    return [json.loads((folder / name).read_text()) for name in names]


@pytest.mark.slow
def test_a_fit_of_two_ranks_continues_in_one_and_then_in_two(oxe_root: Path, tmp_path: Path) -> None:
    first, second = _fit(oxe_root, tmp_path, 2, 2)
    assert first["train"] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert second["train"] == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert first["val"] == [[0, 1, 2, 3]] * 2 and second["val"] == [[4, 5, 6, 7]] * 2
    assert first["weight"] == second["weight"]
    (alone,) = _fit(oxe_root, tmp_path, 1, 3, ckpt="step=2.ckpt")
    assert alone["train"] == [list(range(16, 24))]
    first, second = _fit(oxe_root, tmp_path, 2, 4, ckpt="step=3.ckpt")
    assert first["train"] == [[24, 25, 26, 27]] and second["train"] == [[28, 29, 30, 31]]
    (full,) = _fit(oxe_root, tmp_path / "whole", 1, 4)
    assert first["weight"] == second["weight"] == pytest.approx(full["weight"], rel=1e-5)
