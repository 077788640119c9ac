"""Outputs that cannot be written or hold something else: what the command says, and what it leaves."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from convert.errors import EXIT_FAILED, EXIT_USAGE
from convert.journal.journal import Journal
from convert.run.command import main
from stream.format.manifest import read_manifest
from tests.fixtures.command import Result, start, tree
from tests.fixtures.datasets.five_shards import Convert, arguments, convert, dataset, output
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset

__all__ = ["convert", "dataset", "output"]


@pytest.fixture(scope="module")
def converted(dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output that is complete; not to be written to."""
    output = tmp_path_factory.mktemp("converted") / "out"
    assert main(arguments(dataset, output)) == 0
    return output


@pytest.fixture
def done(converted: Path, output: Path) -> Path:
    """The folder of a complete conversion."""
    shutil.copytree(converted, output)
    return output / "demo" / "1.0.0"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, timeout=60)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], timeout=60)


def assert_refused(result: Result, output: Path, before: dict[str, str]) -> str:
    """The command did nothing; returns what it said."""
    assert result.code == EXIT_USAGE
    assert tree(output) == before
    return result.error()


def test_file_in_the_place_of_the_output_is_named(convert: Convert, output: Path) -> None:
    output.write_text("mine")
    result = convert()
    assert result.code == EXIT_USAGE
    assert f"{output / 'demo' / '1.0.0'} cannot be written: Not a directory; choose another --output" in result.error()
    assert output.read_text() == "mine"


def test_output_where_nothing_can_be_written_is_named(convert: Convert) -> None:
    result = convert(output=Path("/proc/oxe"))
    assert result.code == EXIT_USAGE
    assert "/proc/oxe/demo/1.0.0 cannot be written: " in result.error()


def test_full_disk_stops_and_the_same_command_goes_on_when_there_is_room(
    convert: Convert, done: Path, small_disk: Path
) -> None:
    result = convert(output=small_disk / "out")
    assert result.code == EXIT_FAILED
    assert "the disk is full; make room and run the same command again (in demo train-0000" in result.error()
    folder = small_disk / "out" / "demo" / "1.0.0"
    assert not (folder / "dataset.json").exists()
    assert not list(folder.rglob("*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True, timeout=60)
    assert convert(output=small_disk / "out").code == 0
    assert tree(folder) == tree(done)


@pytest.mark.long
def test_full_disk_stops_worker_processes_too_and_nothing_of_it_stays(
    dataset: RldsDataset, small_disk: Path, convert: Convert, done: Path
) -> None:
    with start(*arguments(dataset, small_disk / "out"), "--num-workers", "2") as command:
        result = command.wait()
        assert result.code == EXIT_FAILED
        assert "disk is full" in result.error() or "No space left on device" in result.error()
        assert command.processes() == []
    assert not list(small_disk.rglob("dataset.json"))
    assert not list(small_disk.rglob("*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True, timeout=60)
    assert convert(output=small_disk / "out").code == 0
    assert tree(small_disk / "out" / "demo" / "1.0.0") == tree(done)


@pytest.mark.long
@pytest.mark.parametrize("megabytes", [1024, 1800, 3600])
def test_too_little_address_space_is_refused(dataset: RldsDataset, output: Path, megabytes: int) -> None:
    limit = ("bash", "-c", f'ulimit -v {megabytes * 1024} && exec "$0" "$@"')
    with start(*arguments(dataset, output), through=limit) as command:
        result = command.wait()
    assert result.code == EXIT_USAGE
    assert f"the address space is limited to {megabytes * 2**20 / 1e9:.1f} GB (ulimit -v)" in result.error()


def test_other_parameters_in_the_same_place_are_refused_with_both_values(convert: Convert, done: Path) -> None:
    error = assert_refused(convert("--offset", "3"), done, tree(done))
    assert f"{done} holds a conversion with other parameters: offset was 2, now 3." in error
    assert "--overwrite" in error


def test_other_parameters_than_those_of_an_unfinished_conversion_are_refused(
    convert: Convert, done: Path, output: Path
) -> None:
    start_journal(done)
    (done / "dataset.json").unlink()
    error = assert_refused(convert("--quality", "80"), output, tree(output))
    assert "quality was 95, now 80" in error


def start_journal(done: Path) -> None:
    """Put a journal beside a complete conversion, as if it was killed before its last act."""
    manifest = read_manifest(done)
    Journal(done).begin({**manifest.parameters, "source": manifest.source.fingerprint})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: "{", "dataset.json"),
        (lambda text: "[]", "dataset.json"),
        (lambda text: text.replace('"demo"', '"domo"', 1), "checksum is wrong"),
        (
            lambda text: json.dumps({"format_version": 1, "layout": "pairs", "splits": {}}),
            "format version 1, this program reads version 2; convert it again with `python -m convert.run ... --overw",
        ),
    ],
    ids=["open", "list", "edited", "another format"],
)
def test_broken_manifest_is_refused(convert: Convert, done: Path, edit: Callable[[str], str], message: str) -> None:
    path = done / "dataset.json"
    path.write_text(edit(path.read_text()))
    error = assert_refused(convert(), done, tree(done))
    assert str(path) in error and message in error and "(or choose another --output)" in error


def test_overwrite_takes_the_place_of_a_broken_manifest(convert: Convert, done: Path) -> None:
    before = tree(done)
    (done / "dataset.json").write_text("{")
    assert convert("--overwrite").code == 0
    assert tree(done) == before


@pytest.mark.parametrize(
    "runner",
    [
        ("--runner", "PortableRunner", "--job_endpoint", "localhost:1"),
        ("--runner", "DaskRunner", "--dask_client_address", "tcp://127.0.0.1:1", "--dask_connection_timeout", "1"),
        ("--runner", "DataflowRunner", "--project", "p", "--temp_location", "gs://b/t"),
    ],
    ids=lambda value: value[1],
)
def test_overwrite_removes_nothing_where_the_runner_cannot_start(
    convert: Convert, done: Path, runner: tuple[str, ...]
) -> None:
    before = tree(done)
    result = convert("--overwrite", *runner)
    assert result.code in (EXIT_FAILED, EXIT_USAGE)
    assert result.error()
    assert tree(done) == before


@pytest.mark.long
def test_overwrite_leaves_the_old_until_the_new_is_complete(tmp_path: Path, output: Path) -> None:
    # The smallest comes last.
    shards = [[demo_episode(steps)] for steps in (9, 8, 6)]
    dataset = write_dataset(tmp_path / "source", splits={"train": shards})
    options = arguments(dataset, output)
    assert main(options) == 0
    before = tree(output)
    last = dataset.shard("train", 2, count=3)
    content = last.read_bytes()
    last.write_bytes(content[:-9] + bytes(9))
    repeated = [*options, "--overwrite", "--offset", "3"]
    assert main([*repeated, "--on-error", "fail"]) == EXIT_FAILED
    assert {name: actual for name, actual in tree(output).items() if not name.startswith(".overwrite")} == before
    last.write_bytes(content)
    finished = list(output.glob(".overwrite/demo/1.0.0/train/*.arrayrecord"))
    assert len(finished) == 2
    inodes = {path.stat().st_ino for path in finished}
    assert main(repeated) == 0
    assert inodes < {path.stat().st_ino for path in output.glob("demo/1.0.0/train/*.arrayrecord")}
    assert read_manifest(output / "demo" / "1.0.0").parameters["offset"] == 3
    assert [path.name for path in output.iterdir()] == ["demo"]


@pytest.mark.long
def test_overwrite_with_other_parameters_than_an_unfinished_one_begins_anew(tmp_path: Path, output: Path) -> None:
    dataset = write_dataset(tmp_path / "source", splits={"train": [[demo_episode(9, seed=i)] for i in range(2)]})
    options = arguments(dataset, output)
    assert main([*options, "--offset", "4"]) == 0
    expected = tree(output)
    last = dataset.shard("train", 1, count=2)
    content = last.read_bytes()
    last.write_bytes(bytes(9))
    assert main([*options, "--overwrite", "--offset", "3", "--on-error", "fail"]) == EXIT_FAILED
    last.write_bytes(content)
    assert main([*options, "--overwrite", "--offset", "4"]) == 0
    assert tree(output) == expected


def test_remove_takes_one_dataset_and_leaves_what_others_put_there(
    dataset: RldsDataset, done: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def remove(*more: str) -> Result:
        arguments = ("--datasets", "demo", "--config", str(dataset.registry()), "--output", str(output))
        return Result(main(["remove", *arguments, *more]), *capsys.readouterr())

    before = tree(output)
    assert remove("--dry-run").out == f"demo: train, val to remove in {done}\n"
    assert tree(output) == before
    second = output / "other" / "1.0.0" / "dataset.json"
    second.parent.mkdir(parents=True)
    for path in (second, done / "notes.txt"):
        path.write_text("mine")
    result = remove()
    assert (result.code, result.out) == (0, f"demo: train, val removed in {done}\n")
    left = {name for name, actual in tree(output).items() if actual != "folder"}
    assert left == {"other/1.0.0/dataset.json", "demo/1.0.0/notes.txt"}
    assert remove().out == f"demo: nothing removed in {done}\n"


@pytest.mark.long
def test_relative_paths_are_those_of_the_command(
    dataset: RldsDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--datasets", "demo", "--config", str(dataset.registry()), "--num-workers", "1"]
    assert main([*arguments, "--source", os.path.relpath(dataset.root), "--output", "out"]) == 0
    assert read_manifest(tmp_path / "out" / "demo" / "1.0.0").source.path == str(dataset.path)


@pytest.mark.parametrize("chosen", [("--episodes", "val"), ("--episodes", "val[:1]")])
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--offset", "3")])
def test_overwrite_of_some_splits_does_not_take_the_others_along(
    convert: Convert, done: Path, chosen: tuple[str, str], more: tuple[str, ...]
) -> None:
    error = assert_refused(convert("--overwrite", *chosen, *more), done, tree(done))
    assert f"{done} has train too, which --overwrite {' '.join(chosen)} would remove and not convert again" in error


def test_wrong_option_beside_overwrite_removes_nothing(convert: Convert, done: Path) -> None:
    assert "--num-wrokers=1" in assert_refused(convert("--overwrite", "--num-wrokers=1"), done, tree(done))


def test_journal_that_a_kill_left_beside_the_manifest_is_removed(convert: Convert, done: Path) -> None:
    before = tree(done)
    start_journal(done)
    assert convert().code == 0
    assert tree(done) == before


@pytest.mark.long
def test_two_conversions_into_the_same_place_give_what_one_gives(
    dataset: RldsDataset, output: Path, done: Path
) -> None:
    reference = tree(done)
    shutil.rmtree(output)
    with ExitStack() as stack:
        commands = [stack.enter_context(start(*arguments(dataset, output))) for _ in range(2)]
        results = [command.wait() for command in commands]
    assert 0 in [result.code for result in results]
    for result in results:
        if result.code:
            assert result.code == EXIT_FAILED
            assert "another process is converting these" in result.error()
    assert tree(done) == reference
