"""Sound conversions, the report, and the command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from convert.errors import UsageError
from convert.run.command import main as convert
from convert.verify.command import verify_root
from stream.format.names import shard_file, table_file
from tests.fixtures.command import TIMEOUT, Result, start, wait_until
from tests.fixtures.faults.conversion_damage import DATASET, STEM, empty, problems, verify


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_conversion_has_no_problems(converted: Path, deep: bool) -> None:
    report = verify(converted, deep=deep)
    assert (problems(report), report.ok) == ("", True)


def test_the_conversion_under_test_has_left_out_something_for_every_reason(converted: Path) -> None:
    manifest = json.loads((converted / DATASET / "1.0.0" / "dataset.json").read_text())
    assert set(manifest["left_out"]) == {"corrupt_frame", "empty", "pair_of_corrupt_frame", "too_short", "unreadable"}


def test_real_episodes_have_no_problems(shared_data: Path, tmp_path: Path) -> None:
    convert(["--datasets", DATASET, "--source", str(shared_data), "--output", str(tmp_path), "--num-workers", "1"])
    assert problems(verify(tmp_path)) == ""


def test_the_report_counts_what_the_manifests_say(converted: Path) -> None:
    (entry,) = (e for e in verify(converted, deep=False).to_json()["datasets"] if e["dataset"] == DATASET)
    folder = converted / DATASET / "1.0.0"
    size = sum(path.stat().st_size for split in ("train", "val") for path in (folder / split).iterdir())
    assert [entry[key] for key in ("splits", "shards", "bytes", "verdict")] == [["train", "val"], 4, size, "ok"]


@pytest.mark.parametrize("below", [".", DATASET, f"{DATASET}/1.0.0"])
def test_the_root_may_be_a_dataset_or_a_version(converted: Path, below: str) -> None:
    report = verify(converted / below, deep=False)
    assert DATASET in {dataset.dataset for dataset in report.datasets} and report.ok


def test_a_relative_root_is_named_after_its_real_folder(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(converted / DATASET / "1.0.0")
    assert [(d.dataset, d.version) for d in verify(Path("."), deep=False).datasets] == [(DATASET, "1.0.0")]


def test_nothing_is_changed(root: Path) -> None:
    def seen() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in root.rglob("*")}

    before = seen()
    verify(root)
    assert seen() == before


def test_only_chosen_datasets_are_checked(root: Path, folder: Path) -> None:
    (folder / "dataset.json").write_text("")
    assert verify_root(root, datasets=["rt1"], jobs=1).ok


def test_processes_find_the_same_as_one(root: Path, folder: Path) -> None:
    (folder / "train" / table_file("steps")).write_bytes(b"")
    (folder / "train" / shard_file(STEM)).unlink()
    (root / "rt1" / "0.1.0" / "train" / table_file("records")).unlink()
    assert verify_root(root, deep=True, jobs=3).problems == verify_root(root, deep=True, jobs=1).problems


def test_a_root_with_nothing_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing was converted here; expected <dataset>/<version>/dataset.json"):
        verify_root(tmp_path)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pairstream", "verify", *arguments], capture_output=True, text=True)


def test_the_command_ends_with_0_and_a_table(converted: Path) -> None:
    done = command(str(converted))
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["dataset", "bridge_dataset", "rt1"]


def test_the_command_ends_with_1_and_a_line_a_problem(root: Path, folder: Path) -> None:
    path = folder / "train" / table_file("steps")
    path.unlink()
    done = command(str(root), "--deep")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"{path}: is not there, expected" in done.stdout and "--overwrite" in done.stdout


def test_the_command_ends_with_2_and_a_sentence(tmp_path: Path) -> None:
    done = command(str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("error: ")


def test_json_has_datasets_and_problems(root: Path, folder: Path) -> None:
    path = folder / "val" / table_file("records")
    empty(path)
    result = json.loads(command(str(root), "--json", "--jobs", "1").stdout)
    assert [entry["dataset"] for entry in result["datasets"]] == [DATASET, "rt1"]
    (finding,) = result["findings"]
    assert (finding["dataset"], finding["split"], result["ok"]) == (DATASET, "val", False)
    (problem,) = finding["examples"]
    assert problem["file"] == str(path) and problem["text"].startswith("has 0 bytes, expected ")


@pytest.mark.long
@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_ends_all_processes_without_a_traceback(root: Path, folder: Path, whole_group: bool) -> None:
    # A file with a hole of a terabyte takes hours to read.
    endless = folder / "train" / shard_file(STEM)
    os.truncate(endless, 1 << 40)
    with start(str(root), "--jobs", "2", module="pairstream verify") as running:

        def is_reading() -> bool:
            opened = []
            for process in running.processes():
                with contextlib.suppress(psutil.Error):
                    opened += [file.path for file in process.open_files()]
            return str(endless) in opened

        assert wait_until(lambda: is_reading() or running.process.poll() is not None, seconds=TIMEOUT, poll=0.05)
        children = psutil.Process(running.pid).children()
        (os.killpg if whole_group else os.kill)(running.pid, signal.SIGINT)
        result = running.wait()
    assert result == Result(130, "", "interrupted; nothing was changed\n")
    assert children and psutil.wait_procs(children, timeout=60)[1] == []
