"""The id of an episode is its own file and its number there, whatever lies beside the file and however it is called."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from convert.errors import EXIT_DAMAGED
from convert.verify.command import verify_root
from convert.verify.index import check_ids
from stream import make_loader
from stream.format.manifest import read_manifest
from tests.fixtures.arrays.converted import convert, episodes, opened
from tests.fixtures.arrays.written import h5py, scene


def write(path: Path, seed: int, *, steps: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for number in range(2):
            file[f"data/demo_{number}/obs/front"] = scene(steps, seed=seed)
            file[f"data/demo_{number}/actions"] = np.full((steps, 2), float(10 * seed + number))


def ids(out: Path) -> dict[str, float]:
    return {row["episode_id"]: row["rows"][0]["actions"][0] for row in episodes(opened(out, "src"))}


@pytest.fixture
def location(tmp_path: Path) -> str:
    for seed, name in enumerate(("a/b.hdf5", "a__b.hdf5", "run 5 é.hdf5", "-x.hdf5")):
        write(tmp_path / "src" / name, seed)
    return f"robomimic:{tmp_path / 'src'}"


EXPECTED = {"-x.hdf5": 3, "a/b.hdf5": 0, "a__b.hdf5": 1, "run 5 é.hdf5": 2}


def test_each_episode_has_an_id_of_its_own_file_and_verify_agrees(tmp_path: Path, location: str) -> None:
    assert convert(location, tmp_path / "out") == 0
    assert ids(tmp_path / "out") == {
        f"{name}__{number}": 10.0 * seed + number for name, seed in EXPECTED.items() for number in range(2)
    }
    assert verify_root(tmp_path / "out", jobs=1).ok
    loader = make_loader(tmp_path / "out", "src", batch_size=4, action=1, frames=[0])
    refs = [ref for step in range(6) for ref in loader.describe(step)]
    assert {ref.source_file for ref in refs} == set(EXPECTED)
    assert all(ref.episode_id == f"{ref.source_file}__{ref.episode_id[-1]}" for ref in refs)


def test_one_more_recording_and_a_converted_root_rename_no_episode(tmp_path: Path, location: str) -> None:
    assert convert(location, tmp_path / "before") == 0
    write(tmp_path / "src" / "a" / "a.hdf5", 7)
    assert convert(location, tmp_path / "after") == 0
    before, after = ids(tmp_path / "before"), ids(tmp_path / "after")
    assert before == {name: after[name] for name in before}
    assert set(after) - set(before) == {"a/a.hdf5__0", "a/a.hdf5__1"}
    assert convert(f"root:{tmp_path / 'after' / 'src'}", tmp_path / "again") == 0
    assert ids(tmp_path / "again") == after


def test_damage_and_lists_name_the_file_of_the_episode(
    tmp_path: Path, location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(tmp_path / "src" / "run 5 é.hdf5", "a") as file:
        del file["data/demo_1/actions"]
    assert convert(location, tmp_path / "fails", "--on-error", "fail") != 0
    assert "run 5 é.hdf5: episode 1: malformed" in capsys.readouterr().err
    assert convert(location, tmp_path / "out") == EXIT_DAMAGED
    (row,) = map(json.loads, (tmp_path / "out/src/1.0.0/quarantine.jsonl").read_text().splitlines())
    assert (row["source_file"], row["episode"]) == ("run 5 é.hdf5", 1)
    assert verify_root(tmp_path / "out", jobs=1).ok
    (tmp_path / "list.txt").write_text("a/b.hdf5__1\n-x.hdf5__0\n")
    chosen = tmp_path / "chosen.json"
    chosen.write_text(json.dumps({"src": str(tmp_path / "list.txt")}))
    assert convert(location, tmp_path / "some", "--episodes", str(chosen)) == 0
    assert ids(tmp_path / "some") == {"-x.hdf5__0": 30.0, "a/b.hdf5__1": 1.0}


def test_a_name_that_is_no_utf8_is_escaped(tmp_path: Path) -> None:
    write(tmp_path / "src" / "a.hdf5", 0)
    os.rename(tmp_path / "src" / "a.hdf5", os.fsencode(tmp_path / "src") + b"/\xff.hdf5")
    assert convert(f"robomimic:{tmp_path / 'src'}", tmp_path / "out") == 0
    assert list(ids(tmp_path / "out")) == [f"\\udcff.hdf5__{number}" for number in range(2)]


def test_verify_finds_an_id_of_two_episodes_of_one_dataset(tmp_path: Path, location: str) -> None:
    assert convert(location, tmp_path / "out") == 0
    folder = tmp_path / "out/src/1.0.0"
    split = read_manifest(folder).splits["train"]
    assert not check_ids(folder, {"train": split}).damage
    (damage,) = check_ids(folder, {"train": split, "./train": split}).damage
    assert "episode_id '-x.hdf5__0' is of two episodes" in damage.text and damage.count == 8
