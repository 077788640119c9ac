"""The function of docs/own-data.md, which is that of the examples, reads a recording and is converted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convert.run.command import main
from stream import make_loader
from tests.documentation.blocks import block_with
from tests.fixtures.command import REPOSITORY


@pytest.mark.parametrize("source", ["page", "example"])
def test_a_function_of_your_own(source: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "recordings").mkdir()
    for number in range(3):
        steps = 8 + number
        np.savez(
            tmp_path / "recordings" / f"take{number}.npz",
            front=random.integers(0, 255, (steps, 32, 32, 3), np.uint8),
            state=random.normal(size=(steps, 7)),
            action=random.normal(size=(steps, 6)).astype(np.float32),
            instruction=np.array(f"lift cup {number}"),
        )
    module = REPOSITORY / "examples" / "own_data.py"
    if source == "page":
        module = tmp_path / "my_data.py"
        module.write_text(block_with(tmp_path, "def episodes(path)"))
    arguments = ["--datasets", f"python:{module}:episodes", "--source", str(tmp_path / "recordings" / "*.npz")]
    assert main([*arguments, "--output", str(tmp_path / "out"), "--num-workers", "1", "--offset", "2"]) == 0
    batch = make_loader(tmp_path / "out", module.stem, batch_size=21).batch_at(0)
    assert sorted(set(batch["language"])) == [f"lift cup {number}" for number in range(3)]
    assert batch["action"].shape[2] == 6
