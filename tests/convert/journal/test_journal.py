import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convert.errors import ConflictError, ConvertError, ShardError
from convert.journal.journal import FOLDER, Journal, part_file
from convert.journal.status import QuarantineEntry, ShardStatus
from convert.storage.durable import write_durably, writing
from convert.storage.staging import machine
from stream.format.manifest import FileEntry, ShardEntry
from stream.format.names import TABLE_KINDS, shard_file

REPOSITORY = Path(__file__).resolve().parents[3]
STEM = "train-00000-of-00002"
PARAMETERS: dict[str, Any] = {
    "camera": "observation/image",
    "offset": 5,
    "columns": ["action", "state"],
    "episodes": None,
}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    created = Journal(tmp_path / "out" / "demo" / "1.0.0")
    created.begin(PARAMETERS)
    return created


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


HOLD = """
import sys
from convert.journal.journal import Journal
journal = Journal(sys.argv[1])
with journal.lock(sys.argv[2], wait=len(sys.argv) > 3) as mine:
    with journal.stage(sys.argv[2]) as stage:
        (stage / "steps").touch()
        print(mine, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def holder(journal: Journal) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of a shard and has a file half-written."""
    process = python(HOLD, journal.output, STEM)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def folder_of(journal: Journal) -> Path:
    return Path(journal.output) / FOLDER


def temporaries(journal: Journal) -> list[str]:
    return sorted(name.split(".")[0] for name in os.listdir(folder_of(journal)) if name.endswith(".tmp"))


def leave_stage(journal: Journal, owner: str, *, host: str | None = None) -> Path:
    """Make the temporary folder that a killed process leaves."""
    path = folder_of(journal) / f"{owner}.{host or machine()}-1-abcd.tmp"
    path.mkdir()
    (path / "steps").touch()
    return path


def entry(name: str = STEM, size: int = 3) -> ShardEntry:
    return ShardEntry(
        name=name,
        source_file="demo-train.tfrecord-00000-of-00002",
        source_bytes=100,
        source_digest="ab" * 32,
        episodes=1,
        steps=10,
        records=5,
        paired_episodes=1,
        left_out={"corrupt_frame": 1},
        file=FileEntry(bytes=size, sha256="0f" * 32),
    )


def make_status(name: str = STEM) -> ShardStatus:
    lost = QuarantineEntry(shard=name, source_file="f", episode=0, step=3, reason="corrupt_frame", detail="why")
    parts = {kind: FileEntry(bytes=3, sha256="0f" * 32) for kind in TABLE_KINDS}
    return ShardStatus(entry=entry(name), parts=parts, longest=10, bytes_in=90, quarantine=(lost,))


def place_files(journal: Journal, stem: str = STEM) -> list[Path]:
    output = Path(journal.output)
    (output / "train").mkdir(exist_ok=True)
    paths = [output / "train" / shard_file(stem), *(output / part_file(stem, kind) for kind in TABLE_KINDS)]
    for path in paths:
        path.write_bytes(b"abc")
    return paths


def test_a_conversion_goes_on_with_the_same_parameters(journal: Journal) -> None:
    journal.begin(dict(reversed(PARAMETERS.items())))
    assert journal.parameters() == PARAMETERS
    assert temporaries(journal) == []


def test_other_parameters_are_refused_and_each_that_differs_is_named(journal: Journal) -> None:
    with pytest.raises(ConflictError) as caught:
        journal.begin({**PARAMETERS, "offset": 6, "episodes": "train[:1]"})
    assert str(caught.value) == (
        f"{journal.output} holds a conversion with other parameters: episodes was None, now 'train[:1]'; offset was 5, "
        "now 6. Use another --output, the old parameters, or --overwrite"
    )
    assert journal.parameters() == PARAMETERS


def test_nothing_was_begun_in_an_empty_folder(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.parameters() is None
    assert journal.finished() == set()
    journal.remove_stale()
    journal.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '"text"'])
def test_parameters_that_cannot_be_read_are_a_conflict(journal: Journal, content: str) -> None:
    (folder_of(journal) / "parameters.json").write_text(content)
    with pytest.raises(ConflictError, match=r"parameters\.json: not .*JSON.*; run with --overwrite"):
        journal.begin(PARAMETERS)


BEGIN = """
import sys
from convert.errors import ConvertError
from convert.journal.journal import Journal
journal = Journal(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    journal.begin({"offset": int(sys.argv[2])})
    print("begun")
except ConvertError as error:
    print(type(error).__name__)
"""


def test_of_processes_that_begin_at_once_with_other_parameters_one_wins(tmp_path: Path) -> None:
    processes = [python(BEGIN, tmp_path / "out", offset) for offset in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[0].strip() for process in processes]
    assert sorted(answers) == ["ConflictError"] * 2 + ["begun"]
    assert Journal(tmp_path / "out").parameters() == {"offset": answers.index("begun")}


def test_a_shard_that_another_process_converts_is_left_to_it(journal: Journal, holder: subprocess.Popen[str]) -> None:
    with journal.lock(STEM) as mine:
        assert not mine
    with journal.lock("train-00001-of-00002") as mine:
        assert mine


def test_what_another_process_is_writing_is_not_stale(journal: Journal, holder: subprocess.Popen[str]) -> None:
    leave_stage(journal, "val-00000-of-00001")
    journal.remove_stale()
    assert temporaries(journal) == [STEM]


def test_what_a_killed_process_was_writing_is_removed_by_the_next_that_looks(
    journal: Journal, holder: subprocess.Popen[str]
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert temporaries(journal) == [STEM]
    journal.remove_stale()
    assert temporaries(journal) == []


def test_the_lock_is_waited_for_if_that_is_wanted(journal: Journal, holder: subprocess.Popen[str]) -> None:
    claimed = threading.Event()

    def take() -> None:
        with journal.lock(STEM, wait=True) as mine:
            assert mine
            claimed.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not claimed.wait(0.2)
    holder.kill()
    assert claimed.wait(60)
    thread.join()


def test_the_lock_keeps_other_threads_of_the_process_out_too(journal: Journal) -> None:
    with journal.lock(STEM) as first, journal.lock(STEM) as second:
        assert (first, second) == (True, False)


def test_files_of_a_split_whose_name_has_a_dot_are_not_taken_for_those_of_another(journal: Journal) -> None:
    with journal.stage("train.v2-00000-of-00001") as folder, journal.stage("train"):
        journal.remove_stale()
        assert folder.exists()


def test_files_of_another_machine_whose_lock_is_not_seen_here_are_removed_after_a_day(journal: Journal) -> None:
    reference = leave_stage(journal, STEM, host="another")
    journal.remove_stale()
    with journal.lock(STEM) as mine:
        assert mine
        assert reference.exists()
    os.utime(reference, (time.time() - 25 * 3600,) * 2)
    journal.remove_stale()
    assert not reference.exists()


def test_a_journal_that_another_process_removes_meanwhile_is_no_error(journal: Journal) -> None:
    stop = threading.Event()
    removed = 0

    def renew() -> None:
        nonlocal removed
        while not stop.is_set():
            folder_of(journal).mkdir(exist_ok=True)
            # The folder of a killed process may be swept at any moment.
            with contextlib.suppress(FileNotFoundError):
                leave_stage(journal, STEM)
            journal.remove()
            removed += 1

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        looked = 0
        while looked < 300 or removed < 20:
            journal.remove_stale()
            looked += 1
            assert thread.is_alive()
    finally:
        stop.set()
        thread.join()
    assert not journal.exists()


def test_no_other_process_finds_half_of_a_journal_that_is_removed(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = []
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: exists.append(journal.exists()))
    journal.clear([STEM], ["train"])
    assert not exists[-1]
    monkeypatch.undo()
    assert (Path(journal.output) / f"{FOLDER}.removed").exists(), "as after a kill"
    journal.remove_stale()
    assert os.listdir(journal.output) == []


def test_a_finished_shard_has_a_status_that_is_read_back(journal: Journal) -> None:
    place_files(journal)
    journal.finish(make_status())
    assert journal.status(STEM) == make_status()
    assert journal.finished() == {STEM}
    assert journal.status("train-00001-of-00002") is None
    assert temporaries(journal) == []


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("content", [None, b"ab", b"abcd"])
def test_a_shard_whose_files_are_not_as_they_were_is_not_finished(
    journal: Journal, index: int, content: bytes | None
) -> None:
    path = place_files(journal)[index]
    journal.finish(make_status())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert journal.status(STEM) is None


@pytest.mark.parametrize("content", ["", "{}", '{"entry": 1', "null"])
def test_a_status_that_cannot_be_read_is_none(journal: Journal, content: str) -> None:
    place_files(journal)
    (folder_of(journal) / f"{STEM}.status.json").write_text(content)
    assert journal.status(STEM) is None


def test_a_status_without_the_file_of_the_records_is_none(journal: Journal) -> None:
    place_files(journal)
    status = json.loads(make_status().model_dump_json())
    del status["entry"]["file"]
    (folder_of(journal) / f"{STEM}.status.json").write_text(json.dumps(status))
    assert journal.status(STEM) is None


def test_a_withdrawn_manifest_waits_in_the_journal(journal: Journal) -> None:
    (Path(journal.output) / "dataset.json").write_text("{")
    journal.withdraw()
    journal.withdraw()
    assert journal.manifest() is None
    assert (folder_of(journal) / "withdrawn.json").read_text() == "{"


def test_the_journal_goes_with_the_last_of_its_shards_and_splits(journal: Journal) -> None:
    place_files(journal)
    journal.finish(make_status())
    second = folder_of(journal) / "val-00000-of-00001.status.json"
    second.touch()
    journal.clear([STEM], ["train"])
    assert {path.name for path in folder_of(journal).iterdir()} == {"parameters.json", "manifest.lock", second.name}
    second.unlink()
    journal.clear([STEM], ["train"])
    assert not folder_of(journal).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_must_not_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConvertError, match=r"cannot be written: Permission denied; choose another --output"):
        Journal(tmp_path / "out").begin(PARAMETERS)


def test_a_file_in_the_place_of_a_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConvertError, match=r"/out/demo cannot be written: .*; choose another --output") as caught:
        Journal(tmp_path / "out" / "demo").begin(PARAMETERS)
    assert caught.value.refused


def test_a_full_disk_says_so_and_that_the_same_command_goes_on(tmp_path: Path) -> None:
    with (
        pytest.raises(ShardError, match="the disk is full; make room and run the same command again"),
        writing(tmp_path),
    ):
        write_durably(Path("/dev/full"), b"content")


def test_another_error_of_the_file_system_keeps_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"Input/output error \(/file\)"), writing(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/file")
    with pytest.raises(ConvertError, match=r"Too many open files$"), writing(tmp_path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
