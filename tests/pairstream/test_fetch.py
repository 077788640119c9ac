"""``pairstream fetch``: what it brings is what a loader needs, checked, and the same batches come out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from convert.verify.command import main as verify
from pairstream.fetch import main
from stream import ArgumentError, digest, make_loader
from stream.base.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from stream.format.manifest import Fetched, write_fetched
from stream.format.names import FETCHED_NAME, TABLE_KINDS
from tests.fixtures.command import TIMEOUT, flip, run, start, tree, wait_until
from tests.fixtures.datasets.rewritten_records import change_table
from tests.fixtures.datasets.rlds_dataset import RldsDataset, convert_dataset, demo_episode, write_dataset
from tests.fixtures.faults.disk import Disk
from tests.fixtures.object_stores import Store, object_store, proxy, seen_through, upload_tree

FOLDER = Path("demo/1.0.0")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a converted root: eight shards of train and two of val, two episodes each, one of them damaged."""
    folder = tmp_path_factory.mktemp("fetch")

    def episodes(seed: int) -> list[dict[str, Any]]:
        return [demo_episode(8, seed=seed), demo_episode(9, seed=seed + 1)]

    splits = {
        "train": [episodes(2 * shard) for shard in range(8)],
        "val": [episodes(100 + 2 * shard) for shard in range(2)],
    }
    splits["val"][1][1]["steps"][2]["observation"]["image"] = b"\xff\xd8\xffdamaged"
    dataset = write_dataset(folder / "source", splits=splits)
    convert_dataset(dataset.conversion(folder / "oxe", ConvertConfig(policy=FramePolicy(size=None))))
    return folder / "oxe"


@pytest.fixture(scope="module", params=["s3", pytest.param("gs", marks=pytest.mark.long)])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with object_store(request.param, tmp_path_factory.mktemp("store") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(store: Store, root: Path) -> str:
    url = f"{store.new_bucket()}/oxe"
    upload_tree(root, url)
    return url


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "local"


@pytest.fixture
def damaged(root: Path, tmp_path: Path) -> Path:
    """Return a copy of the root to damage."""
    return Path(shutil.copytree(root, tmp_path / "damaged"))


def fetch(remote: object, local: Path, *more: str, split: str = "train") -> int:
    return main([str(remote), str(local), "--mixture", "demo", "--split", split, *more])


def test_a_power_cut_leaves_no_manifest_without_the_files_that_it_names(
    root: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.mkdir()
    disk, left, replace = Disk(local), list[dict[str, bytes | None]](), os.replace

    def replacing(source: Any, target: Any) -> None:
        replace(source, target)
        left.extend(disk.survivors())

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.sync)
        patch.setattr(os, "replace", replacing)
        assert fetch(root, local, "--jobs", "1") == 0
    files = [path.relative_to(local) for path in local.rglob("*.arr*")]
    complete = [files_left for files_left in left if str(FOLDER / "dataset.json") in files_left]
    assert 0 < len(complete) < len(left)
    for files_left in complete:
        assert all(files_left.get(str(name)) == (local / name).read_bytes() for name in files)
    assert len(files) == 8 + 3


def shards(local: Path, split: str = "train") -> list[str]:
    return sorted(path.name.split(".")[0] for path in (local / FOLDER / split).glob("*.arrayrecord"))


def indexes(local: Path) -> list[str]:
    """Return the splits whose index is present."""
    tables = {f"{kind}.arrow" for kind in TABLE_KINDS}
    indexes_by_split = {path.name: {file.name for file in path.glob("*.arrow")} for path in (local / FOLDER).iterdir()}
    return sorted(split for split, files in indexes_by_split.items() if files == tables)


def digests(root: Path, split: str) -> list[str]:
    loader = make_loader(root, "demo", split=split, batch_size=4, seed=3)
    return [digest(loader.batch_at(step)) for step in (0, 1, 7, 1000)]


def test_a_fetched_root_gives_the_batches_and_states_of_the_whole_one(
    bucket: str, root: Path, local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(bucket, local, split="train[20%:50%]") == 0
    assert shards(local) == [f"train-{index:05d}-of-00008" for index in (1, 2, 3)]
    assert indexes(local) == ["train"]
    assert "demo 1.0.0: 3 of 10 shards needed, 3 here\n6 files fetched" in capsys.readouterr().out
    split = "train[20%:50%]"
    assert digests(local, split) == digests(root, split)
    options: dict[str, Any] = {"split": split, "batch_size": 4, "num_workers": 1}
    local_loader, source_loader = (make_loader(root_path, "demo", **options) for root_path in (local, root))
    assert local_loader.state_at(5) == source_loader.state_at(5)
    assert [row.episode for row in local_loader.describe(9)] == [row.episode for row in source_loader.describe(9)]
    local_loader.save(local / "loader.json")
    done = run("--loader", str(local / "loader.json"), "--step", "3", "--digest", module="pairstream replay")
    assert done.out == f"3 {digest(source_loader.batch_at(3))}\n"


def test_filters_columns_and_pairs_of_an_episode_need_no_other_shard(root: Path, local: Path) -> None:
    split = "train[13:]"
    assert fetch(root, local, split=split) == 0
    for more in (
        {"samples_per_episode": 2},
        {"select": {"where": [("step", ">", 2)]}},
        {"columns": ["steps.action", "robot"]},
    ):
        loaders = [make_loader(root_path, "demo", split=split, batch_size=4, **more) for root_path in (local, root)]
        assert len({digest(loader.batch_at(11)) for loader in loaders}) == 1


def test_a_split_and_an_episode_that_were_not_fetched_are_refused(root: Path, local: Path) -> None:
    assert fetch(root, local, split="train[:4]") == 0
    with pytest.raises(ArgumentError) as caught:
        make_loader(local, "demo", split="train[:6]", batch_size=4)
    assert str(caught.value) == (
        "dataset demo: split 'train[:6]' needs train-00002-of-00008, not fetched yet; "
        f"fetch from {root} with `pairstream fetch` and this mixture and split"
    )
    loader = make_loader(local, "demo", split="train[:4]", batch_size=4)
    assert len(loader.episode("demo", 0).frames)
    with pytest.raises(ArgumentError, match=r"episode 15 is in train-0000.-of-00008, which was not fetched; bring it"):
        loader.episode("demo", 15)


def test_fetching_more_adds_to_what_is_there_and_all_of_it_is_a_whole_root(
    bucket: str, root: Path, local: Path
) -> None:
    assert fetch(bucket, local, split="train[:4]") == 0
    first = {path: path.stat().st_mtime_ns for path in (local / FOLDER / "train").iterdir()}
    assert fetch(bucket, local, split="val[:2]") == 0
    assert shards(local) == ["train-00000-of-00008", "train-00001-of-00008"]
    assert shards(local, "val") == ["val-00000-of-00002"]
    assert digests(local, "train[:4]+val[:2]") == digests(root, "train[:4]+val[:2]")
    assert fetch(bucket, local, "--split", "val", split="train") == 0
    assert tree(local) == tree(root)
    assert {path: path.stat().st_mtime_ns for path in first} == first


def test_what_is_there_is_not_fetched_again(root: Path, local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch(root, local) == 0
    capsys.readouterr()
    assert fetch(root, local, "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["files_fetched"], done["bytes_fetched"]) == (0, 0)
    counts = {"shards_needed": 8, "shards_here": 8, "shards": 10}
    assert done["datasets"] == [{"dataset": "demo", "version": "1.0.0", **counts}]
    lost = [local / FOLDER / "train" / name for name in ("steps.arrow", "train-00004-of-00008.arrayrecord")]
    for file in lost:
        file.unlink()
    assert fetch(root, local) == 0
    assert all(file.exists() for file in lost)


def test_a_complete_root_is_not_written_to_and_one_that_lacks_the_last_step_gets_it(root: Path, local: Path) -> None:
    assert fetch(root, local, split="train+val") == 0
    manifest = local / FOLDER / "dataset.json"
    before = manifest.stat().st_ino
    assert fetch(root, local) == 0
    assert manifest.stat().st_ino == before
    data = json.loads(manifest.read_text())["checksum"]
    listed = Fetched(source=str(root), data=data, shards=(*shards(local), *shards(local, "val")))
    write_fetched(local / FOLDER, listed)
    assert fetch(root, local) == 0
    assert tree(local) == tree(root)


class Gate:
    """Lets a few through, and the others once it is open."""

    def __init__(self, few: int) -> None:
        self._passes, self._is_open = threading.Semaphore(few), threading.Event()

    def wait(self) -> None:
        while not self._is_open.is_set() and not self._passes.acquire(timeout=0.05):
            pass

    def open(self) -> None:
        self._is_open.set()


@pytest.mark.long
def test_a_killed_fetch_goes_on_with_the_files_that_are_missing(
    store: Store, bucket: str, root: Path, local: Path
) -> None:
    gates = [Gate(2)]

    def in_parts(method: str, path: str, body: bytes) -> bytes:
        if "arrayrecord" in path:
            gates[-1].wait()
        return body

    command = (bucket, str(local), "--mixture", "demo", "--split", "train", "--split", "val", "--jobs", "2")
    with proxy(store, in_parts) as environment:
        # Two shards come, and no more until the command was killed; then two further ones until Ctrl-C.
        with start(*command, module="pairstream fetch", environment=environment) as running:
            assert wait_until(lambda: len(shards(local)) >= 2, seconds=TIMEOUT)
            running.kill()
        gates[-1].open()
        gates.append(Gate(2))
        assert not (local / FOLDER / "dataset.json").exists()
        with pytest.raises(ArgumentError, match=r"its fetch is not complete; run the same `pairstream fetch`"):
            make_loader(local, "demo", batch_size=4)
        inodes = {path: path.stat().st_ino for path in local.rglob("*.a*") if path.suffix != ".fetch"}
        with start(*command, module="pairstream fetch", environment=environment) as running:
            assert wait_until(lambda: len(shards(local)) >= 4, seconds=TIMEOUT)
            os.killpg(running.pid, signal.SIGINT)
            gates[-1].open()
            result = running.wait()
        assert result.code == EXIT_INTERRUPTED
        assert result.err.splitlines()[-1] == "interrupted; run the same command again to continue"
        assert not list(local.rglob("*.fetch"))
    assert main(list(command)) == 0
    assert tree(local) == tree(root)
    assert {path: path.stat().st_ino for path in inodes} == inodes


def test_two_at_once_bring_every_file_once(root: Path, local: Path) -> None:
    command = (str(root), str(local), "--mixture", "demo", "--json")
    with start(*command, module="pairstream fetch") as first, start(*command, module="pairstream fetch") as second:
        results = [first.wait(), second.wait()]
    assert [result.code for result in results] == [0, 0], results
    assert sum(json.loads(result.out)["files_fetched"] for result in results) == 11
    assert digests(local, "train") == digests(root, "train")


Refused = Callable[..., None]


@pytest.fixture
def assert_refused(local: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    def run_here(remote: object, *texts: str, code: int = EXIT_FAILED) -> None:
        assert fetch(remote, local) == code
        (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
        assert all(text in error for text in texts), error
        assert not list(local.rglob("*.fetch")) and not (local / FOLDER / "dataset.json").exists()

    return run_here


FILE = FOLDER / "train" / "train-00003-of-00008.arrayrecord"


def test_a_truncated_object_is_one_error_and_the_rest_is_kept(
    store: Store, damaged: Path, local: Path, root: Path, assert_refused: Refused
) -> None:
    (damaged / FILE).write_bytes((damaged / FILE).read_bytes()[:-10])
    bucket = store.new_bucket()
    upload_tree(damaged, bucket)
    assert_refused(bucket, FILE.name, "its manifest says", "check it with `pairstream verify`")
    inodes = {path: path.stat().st_ino for path in local.rglob("*.a*")}
    upload_tree(root, bucket)
    assert fetch(bucket, local) == 0
    assert digests(local, "train") == digests(root, "train")
    assert {path: path.stat().st_ino for path in inodes} == inodes


def test_files_are_brought_without_a_question_for_their_size(store: Store, bucket: str, local: Path) -> None:
    with seen_through(store, lambda method, path, body: 503 if method == "HEAD" and "arrayrecord" in path else body):
        assert fetch(bucket, local) == 0


@pytest.mark.parametrize("file", [FILE, FILE.with_name("steps.arrow")], ids=["shard", "index"])
def test_a_changed_byte_and_a_missing_file_are_found(file: Path, damaged: Path, assert_refused: Refused) -> None:
    flip(damaged / file, 100)
    assert_refused(damaged, file.name, "its SHA-256 is not that of its manifest")
    (damaged / file).unlink()
    assert_refused(damaged, file.name, "is missing")


def test_a_manifest_that_was_changed_is_refused(damaged: Path, local: Path, assert_refused: Refused) -> None:
    flip(damaged / FOLDER / "dataset.json", 3000)
    assert_refused(damaged, "dataset.json")
    assert not local.exists()


@pytest.mark.long
def test_a_wrong_bucket_and_missing_credentials_are_one_error(
    store: Store, bucket: str, local: Path, assert_refused: Refused
) -> None:
    assert_refused(f"{store.scheme}://nowhere-at-all", "no such bucket", code=EXIT_USAGE)
    with proxy(store, lambda *_: 403) as environment:
        result = run(bucket, str(local), "--mixture", "demo", module="pairstream fetch", environment=environment)
    assert (result.code, local.exists()) == (EXIT_USAGE, False)
    assert "not allowed with these credentials" in result.error()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("/nowhere/at/all LOCAL --mixture demo", "/nowhere/at/all: no such folder; expected a converted root"),
        ("ROOT LOCAL --mixture dmo", "no mixture or dataset 'dmo'; did you mean 'demo'?"),
        ("ROOT LOCAL --mixture demo --split test", "no split 'test', there are 'train', 'val'"),
        ("ROOT s3://bucket/oxe --mixture demo", "s3://bucket/oxe: expected a local folder to copy to"),
        ("http://me:secret@host/oxe LOCAL --mixture demo", "http://...: has a name, key or query in it"),
        ("ROOT /dev/null/oxe --mixture demo", "/dev/null/oxe: cannot be created: Not a directory"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(
    root: Path, local: Path, arguments: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"ROOT": str(root), "LOCAL": str(local)}
    assert main([paths.get(argument, argument) for argument in arguments.split()]) == EXIT_USAGE
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and text in err
    assert not local.exists()


def test_a_folder_with_another_conversion_is_left_alone(
    root: Path, local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(root, local, split="train[:4]") == 0
    before = tree(local)
    source = RldsDataset(root.parent / "source", "demo")
    options = ConvertConfig(policy=FramePolicy(size=None), offset="3")
    convert_dataset(source.conversion(tmp_path / "other", options))
    capsys.readouterr()
    assert fetch(tmp_path / "other", local) == EXIT_USAGE
    assert f"{local / FOLDER}: holds another conversion than" in capsys.readouterr().err
    assert tree(local) == before


def test_after_a_reindex_of_the_source_the_index_alone_is_fetched_again(
    damaged: Path, local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(damaged, local, "--split", "val[:2]", split="train[:4]") == 0
    before = {path: path.stat().st_ino for path in local.rglob("*.arrayrecord")}
    old = digests(local, "train[:4]")

    def negate(table: pa.Table) -> pa.Table:
        column_number = table.schema.get_field_index("state")
        values = table["state"].combine_chunks()
        state = pa.FixedSizeListArray.from_arrays(pc.negate(values.values), type=values.type)
        return table.set_column(column_number, table.schema.field(column_number), state)

    change_table(damaged / FOLDER, "train", "steps", negate)
    capsys.readouterr()
    assert fetch(damaged, local, split="train[:2]") == 0
    out = capsys.readouterr().out
    assert "6 files fetched" in out and "damaged" not in out
    assert {path: path.stat().st_ino for path in local.rglob("*.arrayrecord")} == before
    assert old != digests(local, "train[:4]") == digests(damaged, "train[:4]")
    assert digests(local, "val[:2]") == digests(damaged, "val[:2]")


def test_a_full_disk_is_one_error(root: Path, local: Path, assert_refused: Refused) -> None:
    local.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(local)]
    if subprocess.run(command, capture_output=True, timeout=60).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        assert_refused(root, f"{local}: ", "are to be fetched and", "are free")
    finally:
        subprocess.run(["umount", local], check=True)


def test_part_of_a_dataset_is_not_for_verify(root: Path, local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch(root, local, split="train[:4]") == 0
    capsys.readouterr()
    assert verify([str(local)]) == 2
    assert f"was fetched in part ({FETCHED_NAME})" in capsys.readouterr().err
    assert fetch(root, local, "--split", "val") == 0
    assert verify([str(local)]) == 0
