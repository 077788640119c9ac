"""Tests of damaged data and impossible requests: one clear error, or the same replacement for every process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import (
    ArgumentError,
    RecordError,
    RingError,
    SampleSource,
    StateError,
    Workers,
    digest,
    load_loader,
    make_loader,
    samples,
)
from stream.base.errors import FormatError
from stream.format.names import TABLE_KINDS, TableKind
from stream.loader.loader import Loader
from tests.fixtures.command import LIGHT

MIXTURE = {"bridge": 1, "kuka": 1}
BATCH = 8


@pytest.fixture
def root(oxe_root: Path, tmp_path: Path) -> Path:
    """Copy two datasets, for tests that damage them."""
    for name in MIXTURE:
        shutil.copytree(oxe_root / name, tmp_path / "oxe" / name)
    return tmp_path / "oxe"


def loader_of(root: Path, **arguments: Any) -> Loader:
    return make_loader(root, MIXTURE, **{"batch_size": BATCH, "seed": 3, **arguments})


def file_of(root: Path) -> Path:
    """Return the path of an ArrayRecord file."""
    return next((root / "bridge").glob("*/train/*-00001-of-*.arrayrecord"))


def flip_first_frame(path: Path, record: int) -> None:
    """Damage a byte in the picture data of a record."""
    content = bytearray(path.read_bytes())
    starts = [i for i in range(len(content) - 4) if content[i : i + 4] == b"FRM1"]
    content[starts[record] + 400] ^= 0xFF
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def zero_middle(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 25)
        file.write(bytes(size * 23 // 25))


def first_error(loader: Loader) -> tuple[int, RecordError]:
    iterator = iter(loader)
    for step in range(40):
        try:
            next(iterator)
        except RecordError as error:
            assert iterator.get_state()["step"] == step
            iterator.close()
            return step, error
    raise AssertionError("no error in 40 steps")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_record_is_named(root: Path, num_workers: int) -> None:
    flip_first_frame(file_of(root), record=2)
    loader = loader_of(root, num_workers=num_workers)
    step, error = first_error(loader)
    (ref,) = (ref for ref in loader.describe(step) if ref.sample == error.sample)
    assert (error.dataset, error.split, error.shard, error.record) == ("bridge", "train", "train-00001-of-00002", 2)
    assert (ref.dataset, ref.shard, ref.record) == ("bridge", "train-00001-of-00002", 2)
    assert (error.episode, error.step) == (ref.episode, step)
    for part in (f"step {step}", "bridge", "train-00001-of-00002", "record 2", f"episode {ref.episode}"):
        assert part in str(error)


@pytest.mark.parametrize("damage", [cut, zero_middle, Path.unlink], ids=["cut", "zeroed", "missing"])
def test_a_damaged_shard_never_gives_wrong_data(root: Path, damage: Callable[[Path], None]) -> None:
    intact = [digest(loader_of(root).batch_at(step)) for step in range(12)]
    damage(file_of(root))
    loader = loader_of(root)
    failed = 0
    for step, expected in enumerate(intact):
        try:
            batch = loader.batch_at(step)
        except RecordError as error:
            failed += 1
            assert error.shard == "train-00001-of-00002"
        else:
            assert digest(batch) == expected
    assert failed


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_a_damaged_or_missing_table_is_told_when_the_loader_is_made(root: Path, kind: TableKind) -> None:
    path = next((root / "bridge").glob(f"*/train/{kind}.arrow"))
    content = path.read_bytes()
    for damage in (cut, zero_middle):
        damage(path)
        # With steps of actions all three tables are used.
        with pytest.raises(FormatError, match=f"^{path}: .*(damaged|not a complete)"):
            loader_of(root, action=3, on_error="replace")
        path.unlink()
        path.write_bytes(content)
    path.unlink()
    with pytest.raises(FormatError, match=rf"^{path}: missing, though the manifest names it; run .*convert\.run"):
        loader_of(root)


def test_replacements_are_the_same_for_all_and_are_counted(root: Path) -> None:
    file_of(root).unlink()
    reference = loader_of(root, on_error="replace")
    expected = [digest(reference.batch_at(step)) for step in range(6)]
    intact = loader_of(root, on_error="replace", num_workers=2)
    replaced = [batch for _, batch in zip(range(6), intact, strict=False)]
    assert [digest(batch) for batch in replaced] == expected
    stats = intact.stats()
    drawn = [ref for step in range(6) for ref in intact.describe(step)]
    lost = [ref for ref in drawn if ref.dataset == "bridge" and ref.shard == "train-00001-of-00002"]
    assert stats["replaced"] >= len(lost) > 0
    assert "train-00001-of-00002" in stats["replaced_records"][0]
    for step, batch in enumerate(replaced):
        assert batch["sample"].tolist() == list(range(step * BATCH, (step + 1) * BATCH))
        assert batch["dataset"].tolist() == [list(MIXTURE).index(ref.dataset) for ref in intact.describe(step)]
    ranks = [loader_of(root, on_error="replace", rank=rank, world_size=2).batch_at(4) for rank in (0, 1)]
    np.testing.assert_array_equal(np.concatenate([rank["frames"] for rank in ranks]), replaced[4]["frames"])
    sample = samples(root, MIXTURE, seed=3, on_error="replace")[4 * BATCH + 1]
    np.testing.assert_array_equal(sample["frames"], replaced[4]["frames"][1])


def test_a_dataset_of_which_nothing_can_be_read_ends_replacing(root: Path) -> None:
    for path in (root / "bridge").glob("*/train/*.arrayrecord"):
        path.unlink()
    with pytest.raises(RecordError, match="100 replacements of the same dataset failed too"):
        loader_of(root, on_error="replace").batch_at(0)


def test_a_file_that_was_repaired_is_read_again(root: Path, oxe_root: Path) -> None:
    path = file_of(root)
    good = path.read_bytes()
    cut(path)
    loader = loader_of(root)
    step, _ = first_error(loader)
    path.write_bytes(good)
    iterator = iter(loader)
    iterator.set_state(loader.state_at(step))
    assert digest(next(iterator)) == digest(loader_of(oxe_root).batch_at(step))
    iterator.close()


def test_changed_data_are_not_those_of_a_saved_loader(root: Path, oxe_root: Path, tmp_path: Path) -> None:
    loader_of(root).save(tmp_path / "loader.json")
    changed_root = make_loader(oxe_root, {"bridge": 1, "droid": 1}, batch_size=BATCH, seed=3)
    with pytest.raises(StateError, match="samples: mixture: 'kuka' is new; mixture: 'droid' is in the state only"):
        iter(loader_of(root)).set_state(changed_root.state_at(3))
    with pytest.raises(StateError, match="seed: 4 was 3"):
        iter(loader_of(root, seed=4)).set_state(loader_of(root).state_at(3))
    manifest = next((root / "kuka").glob("*/dataset.json"))
    content = json.loads((tmp_path / "loader.json").read_text())
    content["fingerprint"]["datasets"]["kuka"]["data"]["episodes"] = "0" * 16
    (tmp_path / "loader.json").write_text(json.dumps(content))
    with pytest.raises(StateError, match=r"data of 'kuka', which were .* again: other episodes and steps"):
        load_loader(tmp_path / "loader.json")
    manifest.unlink()
    with pytest.raises(ArgumentError, match="kuka"):
        load_loader(tmp_path / "loader.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 10**18}, "batch_size=1000000000000000000; expected at most 1,048,576"),
        ({"batch_size": 10, "rank": 0, "world_size": 4}, "batch_size=10 is not divisible by world_size=4.*8 or 12"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"rank": 2, "world_size": 2}, "rank=2 of world_size=2"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": 1.5}, "num_workers=1.5"),
        ({"shuffle": "blocks:3"}, "shuffle='blocks:3'.*block:N"),
        ({"action": {"reduce": "max"}}, "reduce='max'.*'sum', 'mean', 'first'"),
        ({"on_error": "skip"}, "on_error='skip'"),
        ({"split": "trian"}, "trian.*train"),
        ({"split": "train[:0]"}, r"bridge: split 'train\[:0\]' leaves no episode; .*train \(4 episodes\)"),
        ({"select": {"where": [("step", ">", 1000)]}}, r"4 episodes, but all samples .* \(20 by where: step > 1000\)"),
        ({"select": {"where": [("stp", ">", 1)]}}, "no column 'stp' in bridge, kuka; did you mean 'step'"),
        ({"select": {"where": {"kuak": [("step", ">", 1)]}}}, "no member 'kuak'; did you mean 'kuka'"),
        ({"columns": ["rewrad"]}, "has 'rewrad'; did you mean 'reward'"),
        ({"columns": ["language"]}, "steps.language"),
        ({"samples_per_episode": -1}, "samples_per_episode=-1"),
        ({"transforms": [3]}, "transform 3"),
        ({"action": {"columns": {"bridge": ["action/world_vectr"]}}}, "did you mean 'action/world_vector'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_there_is(root: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s){message}"):
        loader_of(root, **arguments)


def test_memory_that_is_not_to_be_had_is_said_before_anything_starts(root: Path) -> None:
    with pytest.raises(RingError, match=r"needs [0-9,]+ bytes .*are available; take a smaller batch_size"):
        next(iter(loader_of(root, batch_size=1_000_000, num_workers=Workers(2, prefetch=40))))


def test_a_process_short_of_file_handles_still_reads(root: Path) -> None:
    code = f"""{LIGHT}
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from stream import make_loader
iterator = iter(make_loader({str(root)!r}, {MIXTURE!r}, batch_size=8, num_workers=2))
print(len([next(iterator) for _ in range(21)]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("21\n", 0), done.stderr


def test_a_source_names_a_damaged_record_too(root: Path) -> None:
    flip_first_frame(file_of(root), record=0)
    source = SampleSource(root, {"bridge": 1})
    bad = 0
    for index in range(len(source)):
        try:
            source[index]
        except RecordError as error:
            bad += 1
            assert (error.shard, error.record, error.sample) == ("train-00001-of-00002", 0, index)
    assert bad == 1


def test_a_lack_of_file_handles_is_no_damage_and_nothing_stands_in_for_the_record(oxe_root: Path) -> None:
    code = f"""{LIGHT}
import os, resource
from stream import make_loader
from stream.base.errors import LimitError
held = []
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 32, 4096))
loader = make_loader({str(oxe_root)!r}, {MIXTURE!r}, batch_size=1, on_error="replace")
loader.batch_at(0)
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    for step in range(50):
        loader.batch_at(step)
except LimitError as error:
    print(error, loader.stats()["replaced"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "Too many open files; raise the limit on open files (ulimit -n)" in done.stdout, (done.stdout, done.stderr)
    assert done.stdout.endswith(" 0\n")
