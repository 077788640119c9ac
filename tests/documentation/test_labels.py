"""What the pages say of labels runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.documentation.blocks import block_with, run_block


@pytest.fixture
def root(oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to attach to, beside which files are written."""
    shutil.copytree(oxe_root / "bridge", tmp_path / "oxe" / "bridge")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "oxe"


def advantage(batch: dict[str, Any]) -> np.ndarray:
    return np.where(batch["step"] % 3 == 0, 1.5, -1)


def test_from_a_value_model_to_a_filtered_batch(root: Path) -> None:
    batch = run_block(block_with(root, "value_model(batch)"), {"value_model": advantage})["batch"]
    assert (batch["advantage"] == 1.5).all() and batch["advantage_mask"].all()
    assert (batch["step"] % 3 == 0).all()
