"""A few faults of each kind, and that the checks behind them can fail."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.bench.conftest import Refused
from tests.faults.chaos.command import COMMAND, RESULT_FILE, format_result, main, run_chaos
from tests.faults.chaos.faults import killed
from tests.faults.chaos.programs import IN_MEMORY
from tests.faults.chaos.sandbox import Broken, Fault, NotPossible, Sandbox
from tests.fixtures.command import Result, flip, start, wait_until

SLOW_S = 600.0
"""Seconds that all faults may take on a machine which is busy with other things; alone it needs one or two minutes."""


@pytest.mark.long
@pytest.mark.timeout(SLOW_S + 60)
def test_a_few_faults_of_each_kind_lose_nothing(tmp_path: Path) -> None:
    folders = ("--work", str(tmp_path / "work"), "--out", str(tmp_path))
    with start("--short", *folders, "--json", module="tests.faults.chaos") as command:
        done = command.wait(SLOW_S)
    assert done.code == 0, done.out + done.err
    result = json.loads(done.out)
    assert json.loads((tmp_path / RESULT_FILE).read_text()) == result
    names = ("conversion killed", "merging killed", "files lost", "disk full", "labels killed", "loader: worker killed")
    assert {fault["fault"] for fault in result["faults"]} >= set(names)
    assert all(fault["skipped"] or fault["survived"] == fault["tried"] > 0 for fault in result["faults"])
    assert list((tmp_path / "work").iterdir()) == []
    assert "| loader: worker killed | 2 workers | 1 | 1 | error: worker N" in format_result(result)


@pytest.mark.long
@pytest.mark.timeout(SLOW_S + 60)
def test_a_conversion_to_video_that_is_killed_or_stopped_or_fills_the_disk_gives_the_same_bytes(tmp_path: Path) -> None:
    names = ["conversion killed", "conversion stopped", "disk full"]
    only = [word for name in names for word in ("--only", name)]
    result = run_chaos(
        COMMAND.parse(["--short", "--codec", "h264", "--jobs", "1", "--work", str(tmp_path / "work"), *only])
    )
    assert all(any(fault["fault"].startswith(name) for fault in result["faults"]) for name in names)
    for fault in result["faults"]:
        assert fault["skipped"] or fault["survived"] == fault["tried"] > 0, fault["problems"]


@pytest.mark.long
def test_an_output_that_differs_in_one_byte_is_noticed(tmp_path: Path) -> None:
    def damage(sandbox: Sandbox) -> None:
        name = next(name for name in sandbox.reference if name.endswith("/steps.arrow"))
        flip(sandbox.root / name, 100)
        sandbox.reference[name] = "0" * 64

    options = COMMAND.parse(["--short", "--only", "conversion killed", "--jobs", "1", "--work", str(tmp_path)])
    result = run_chaos(options, damage=damage)
    assert result["broken"] == len(result["faults"])
    assert "1 files are not those of an undisturbed conversion" in result["faults"][0]["problems"][0]
    assert "BROKEN" in format_result(result)


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path, datasets="kuka", shards=1, size=64)


@pytest.mark.long
def test_what_a_fault_leaves_behind_is_noticed(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.chaos.sandbox.GONE_S", 0.2)
    with sandbox.trial() as trial:
        trial.check_clean()
        (trial.tmp / "forgotten").write_text("x")
        with pytest.raises(Broken, match="left behind: tmp/forgotten"):
            trial.check_clean()


@pytest.mark.parametrize(
    "result",
    [
        Result(0, "", ""),
        Result(1, "", "error: one\nerror: two\n"),
        Result(1, "", "Traceback (most recent call last):\nValueError: x\nerror: one\n"),
        Result(1, "", "something\n"),
    ],
    ids=["no exit code", "two lines", "traceback", "no line"],
)
def test_only_one_clear_line_counts_as_refusing(sandbox: Sandbox, result: Result) -> None:
    with sandbox.trial() as trial:
        assert trial.check_refused(Result(2, "", "4/8 shards\nerror: one\n")) == "error: one"
        with pytest.raises(Broken):
            trial.check_refused(result)


def test_a_process_that_stays_is_noticed(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.chaos.sandbox.GONE_S", 0.2)
    with sandbox.trial() as trial, trial.starting("http.server", "0") as command:
        with trial.starting("http.server", "0") as survivor:
            # Just after its start a process may not show its environment yet, by which it is known.
            assert wait_until(lambda: bool(psutil.Process(survivor.pid).environ()), seconds=30)
            with pytest.raises(Broken, match=r"processes left: .*http\.server"):
                trial.check_gone(command)
        trial.check_gone(command)


def test_a_fault_counts_what_was_tried_and_what_broke() -> None:
    fault = Fault("x", IN_MEMORY, killed, 3)
    for broken in (False, True, False):
        with fault.attempt():
            if broken:
                raise Broken("lost")
    assert (fault.tried, fault.survived, fault.problems) == (3, 2, ["attempt 1: lost"])
    with pytest.raises(NotPossible), fault.attempt():
        raise NotPossible("no mount")


def test_a_wrong_argument_is_one_line(refused: Refused) -> None:
    code, line = refused(main, ["--kills", "0"])
    assert code == 2 and "found '0'" in line
