"""Conversions of HDF5 and Zarr write the same bytes with any number of workers, and after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.journal.journal import FOLDER
from tests.fixtures.command import run, start, tree, wait_until
from tests.fixtures.datasets import array_files as files

SPLITS = 6


@pytest.mark.long
@pytest.mark.parametrize("kind", ["robomimic", "umi"])
def test_workers_and_a_kill_change_no_byte(tmp_path: Path, kind: str) -> None:
    if kind == "robomimic":
        masks = {f"part{number}": [2 * number, 2 * number + 1] for number in range(SPLITS)}
        files.write_robomimic(tmp_path / "own.hdf5", lengths=[30] * 2 * SPLITS, masks=masks, compression="gzip")
    else:
        for number in range(SPLITS):
            (tmp_path / f"own/{number}").mkdir(parents=True)
            files.write_umi(tmp_path / f"own/{number}/own.zarr.zip", lengths=(20, 15))
    place = tmp_path / ("own.hdf5" if kind == "robomimic" else "own")
    command = ["--datasets", f"{kind}:{place}", "--layout", "frames", "--cameras", "all", "--image-size", "256"]
    for workers in ("1", "2"):
        done = run(*command, "--output", str(tmp_path / workers), "--num-workers", workers)
        assert done.code == 0, done.err
    killed = tmp_path / "killed"
    with start(*command, "--output", str(killed), "--num-workers", "2") as running:
        wait_until(
            lambda: any(killed.glob(f"own/1.0.0/{FOLDER}/*.status.json")) or running.process.poll() is not None,
            seconds=120,
            poll=0.002,
        )
        running.kill()
    again = run(*command, "--output", str(killed), "--num-workers", "1")
    assert again.code == 0, again.err
    assert tree(tmp_path / "1") == tree(tmp_path / "2") == tree(killed)


@pytest.mark.long
def test_a_changed_chunk_of_a_zarr_folder_with_damage_is_converted_again(tmp_path: Path) -> None:
    files.write_replay(tmp_path / "own.zarr", chunk=1)
    chunk = tmp_path / "own.zarr" / "data" / "img" / "2.0.0.0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:10] + b"\xff" * 20)
    command = ["--datasets", f"diffusion_policy:{tmp_path / 'own.zarr'}", "--output", str(tmp_path / "out")]
    command += ["--layout", "frames", "--image-size", "native", "--num-workers", "1"]
    damaged = run(*command)
    assert "corrupt frame 1" in damaged.out + damaged.err
    chunk.write_bytes(whole)
    mended = run(*command)
    assert mended.code == 0, mended.err
    fresh = run(*command[:2], "--output", str(tmp_path / "fresh"), *command[4:])
    assert fresh.code == 0 and tree(tmp_path / "fresh") == tree(tmp_path / "out")
