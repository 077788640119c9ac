"""The command that generates datasets."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest

from convert.sample.command import main, make_sample
from tests.fixtures.command import TIMEOUT, is_written, start, wait_until
from tests.fixtures.datasets.sampled import REGISTRY
from tests.fixtures.faults.gate import Gates


def run(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    arguments = ["--datasets", "tidybot,bc_z", "--output", str(tmp_path), "--episodes", "2", "--steps", "1"]
    code, out, err = run(*arguments, "--jobs", "1")
    assert (code, err) == (0, "")
    rows = [line.split()[:5] for line in out.splitlines()]
    assert rows[1][:3] == ["tidybot", "train", "2"]
    assert rows[2][:5] == ["bc_z", "train", "val", "3", "3"]


def test_the_command_prints_json(tmp_path: Path) -> None:
    code, out, _ = run("--datasets", "tidybot", "--output", str(tmp_path), "--steps", "1", "--jobs", "1", "--json")
    report = json.loads(out)[0]
    assert code == 0
    assert (report["dataset"], report["status"]) == ("tidybot", "written")
    assert {key: report["splits"]["train"][key] for key in ("episodes", "steps")} == {"episodes": 4, "steps": 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--datasets", "tidybto"], "did you mean 'tidybot'?"),
        (["--datasets", "tidybot", "--episodes", "0"], "expected a whole number of at least 1"),
        (["--datasets", "tidybot", "--steps", "-3"], "expected a whole number of at least 1"),
        (["--datasets", "tidybot", "--shards", "two"], "expected a whole number of at least 1"),
        (["--datasets", "tidybot", "--seed", "-1"], "expected a whole number of at least 0"),
        (["--datasets", "tidybot", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_wrong_arguments_end_in_one_message_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, out, err = run("--output", str(tmp_path), *arguments)
    assert (code, out) == (2, "")
    assert message in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_a_file_ends_in_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run("--datasets", "tidybot", "--output", str(tmp_path / "file"), "--jobs", "1")
    assert code == 2
    assert "cannot be written to" in err and "Traceback" not in err


@pytest.mark.long
def test_a_killed_run_leaves_no_dataset_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    gates = Gates()
    gates.close("0.1.0")
    options = ("--datasets", "toto", "--output", str(tmp_path), "--steps", "5000", "--jobs", "1")
    with start(*options, module="pairstream sample", environment=gates.variables) as command:
        assert wait_until(lambda: is_written(tmp_path, "*.tfrecord-*"), seconds=TIMEOUT)
        command.kill()
    left = os.listdir(tmp_path / "toto")
    assert len(left) == 1 and left[0].startswith(".0.1.0-")
    make_sample(tmp_path, [REGISTRY.dataset("toto")], episodes=1, steps=1, jobs=1)
    assert os.listdir(tmp_path / "toto") == ["0.1.0"]
