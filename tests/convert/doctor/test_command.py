"""The command, its page and its JSON."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convert.doctor.dataset
from convert.doctor.checks import SPLIT_CHECKS
from convert.doctor.command import examine, main
from convert.doctor.split import OpenSplit
from convert.findings import Notes
from tests.fixtures.command import run
from tests.fixtures.datasets.doctor_root import Splits, diagnose, found, make_root, set_pictures
from tests.fixtures.datasets.rlds_dataset import jpeg

HOSTILE = "</figcaption><script>alert(1)</script> \"put\" & 'take' \x1b[31m"


def plant_all(splits: Splits) -> None:
    """A NaN, a leak, a black episode with a hostile instruction, and a duplicate."""
    splits["train"][0][0]["steps"][3]["action"][0] = np.nan
    splits["val"][0][1] = splits["train"][0][1]
    set_pictures(splits["train"][0][2], jpeg(np.zeros((24, 32, 3), np.uint8)))
    for step in splits["train"][0][2]["steps"]:
        step["language_instruction"] = HOSTILE
    splits["train"][1][1] = splits["train"][0][3]


def plant_warning(splits: Splits) -> None:
    splits["train"][1][1] = splits["train"][0][3]


@pytest.fixture(scope="module")
def valid_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("doctor-sound"))


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("doctor-bad"), plant_all)


@pytest.fixture(scope="module")
def dubious(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("doctor-dubious"), plant_warning)


def test_the_command_ends_with_0_where_nothing_is_wrong(valid_root: Path) -> None:
    done = run(str(valid_root), "--strict", module="pairstream doctor")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith("0 errors, 0 warnings, 0 hints in 1 dataset: ")


def test_a_shard_without_episodes_is_no_finding(tmp_path: Path) -> None:
    def drop(splits: Splits) -> None:
        splits["train"][1] = []
        splits["val"][0] = []

    root = make_root(tmp_path, drop)
    shards = json.loads(next(root.glob("*/*/dataset.json")).read_text())["splits"]["train"]["shards"]
    assert [shard["episodes"] == 0 for shard in shards] == [False, True]
    assert found(diagnose(root)) == {}


def test_errors_end_with_1(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(bad)]) == 1
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out
    assert "error: demo val: leakage, 1 episode: the same episode is in two splits" in out
    assert "same actions and first frame as demo-train.tfrecord-00000-of-00002 #1 of train" in out
    levels = [line.split(":")[0] for line in out.splitlines() if re.match("(error|warning|hint):", line)]
    assert levels == ["error", "error", "warning", "warning"]


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--strict"], 1)])
def test_warnings_end_with_1_only_if_strict(
    dubious: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert main([str(dubious), *arguments]) == code
    assert "0 errors, 1 warning, 0 hints" in capsys.readouterr().out


def test_json_has_every_finding_with_its_place(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(bad), "--json", "--frames", "200"]) == 1
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (result["errors"], result["warnings"], result["hints"]) == (2, 2, 0)
    by_rule = {finding["rule"]: finding for finding in result["findings"]}
    assert set(by_rule) == {"nonfinite_action", "leakage", "frame_black", "duplicate_episode"}
    nan = by_rule["nonfinite_action"]
    assert (nan["severity"], nan["dataset"], nan["split"], nan["count"]) == ("error", "demo", "train", 1)
    assert nan["episode"] == {"source_file": "demo-train.tfrecord-00000-of-00002", "source_position": 0}
    assert nan["examples"][0]["step"] == 3
    assert len(by_rule["frame_black"]["examples"]) == 3 and by_rule["frame_black"]["count"] == 12


def test_processes_find_the_same_as_one(bad: Path) -> None:
    assert examine(bad, jobs=2).to_json() == examine(bad, jobs=1).to_json()


def test_nothing_is_changed(bad: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in bad.rglob("*")}
    examine(bad)
    assert {path: path.stat().st_mtime_ns for path in bad.rglob("*")} == before


def test_progress_is_shown_on_a_terminal_and_wiped_and_not_in_a_log_of_a_short_run(valid_root: Path) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), StringIO()
    examine(valid_root, progress=terminal)
    examine(valid_root, progress=file)
    assert " shards/s" in terminal.getvalue() and terminal.getvalue().endswith("\x1b[2K")
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: ROOT"),
        (["ROOT", "--frames", "1"], "--frames: found '1', expected a whole number of at least 2"),
        (["ROOT", "--frames", "x"], "--frames: found 'x'"),
        (["ROOT", "--seed", "-1"], "--seed"),
        (["ROOT", "--jobs", "0"], "--jobs: found '0'"),
        (["ROOT", "--datasets", ","], "--datasets ',' names no dataset"),
        (["ROOT", "--datasets", "demmo"], "no dataset 'demmo'; did you mean 'demo'"),
        (["nowhere"], "nowhere: no such folder"),
        (["gs://bucket/oxe"], "only local folders"),
    ],
)
def test_bad_arguments_are_one_line(
    valid_root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    try:
        code: Any = main([str(valid_root) if argument == "ROOT" else argument for argument in arguments])
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and text in err


@pytest.mark.parametrize("below", [".", "demo", "demo/1.0.0"])
def test_a_source_is_refused_with_what_to_do(valid_root: Path, capsys: pytest.CaptureFixture[str], below: str) -> None:
    assert main([str(valid_root.parent / "source" / below)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert "python -m convert.run --datasets demo --source" in err


def test_a_check_that_ends_with_an_error_costs_no_other_check(bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_odd(split: OpenSplit, notes: Notes) -> None:
        raise ValueError(f"odd {split.name}")

    before = found(diagnose(bad))
    monkeypatch.setattr(convert.doctor.dataset, "SPLIT_CHECKS", (check_odd, *SPLIT_CHECKS))
    diagnosis = diagnose(bad)
    assert found(diagnosis) == before | {("unreadable", "train"): 1, ("unreadable", "val"): 1}
    assert diagnosis.findings[0].examples[0].text == "check_odd ended: ValueError: odd train"


def test_ctrl_c_is_one_line(
    valid_root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(convert.doctor.dataset, "check_index", interrupted)
    assert main([str(valid_root)]) == 130
    assert capsys.readouterr().err == "interrupted\n"
