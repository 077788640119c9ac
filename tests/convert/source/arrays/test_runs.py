"""A conversion of Zarr that was damaged goes on when the source is mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.arrays import written as files
from tests.fixtures.command import run, tree


@pytest.mark.long
def test_a_changed_chunk_of_a_zarr_folder_with_damage_is_converted_again(tmp_path: Path) -> None:
    files.write_replay(tmp_path / "own.zarr", chunk=1)
    chunk = tmp_path / "own.zarr" / "data" / "img" / "2.0.0.0"
    complete = chunk.read_bytes()
    chunk.write_bytes(complete[:10] + b"\xff" * 20)
    command = ["--datasets", f"diffusion_policy:{tmp_path / 'own.zarr'}", "--output", str(tmp_path / "out")]
    command += ["--layout", "frames", "--image-size", "native", "--num-workers", "1"]
    damaged = run(*command)
    assert "corrupt frame 1" in damaged.out + damaged.err
    chunk.write_bytes(complete)
    mended = run(*command)
    assert mended.code == 0, mended.err
    fresh = run(*command[:2], "--output", str(tmp_path / "fresh"), *command[4:])
    assert fresh.code == 0 and tree(tmp_path / "fresh") == tree(tmp_path / "out")
