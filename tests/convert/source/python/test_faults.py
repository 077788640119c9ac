"""Whatever a function of one's own does, one episode is listed or one error says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convert.draft import main as draft
from convert.errors import EXIT_DAMAGED, EXIT_USAGE
from convert.run.command import main

HEAD = """
from __future__ import annotations
import sys
from dataclasses import dataclass
import numpy as np
print("hello from the module")
"""
BODY = """
@dataclass
class Arm:
    steps: int
    names: tuple[str, ...] = ()

def picture(seed):
    return np.full((3, 16, 16, 3), seed, np.uint8)

def episodes(path, scale=1):
    print("hello from", path)
    for number in range(3):
        arm = Arm(3)
        steps = {"front": picture(number), "action": np.full((3, 2), float(number * scale)), "text": ["a"] * arm.steps}
        FAULT
        yield {"steps": steps}
"""


def write(folder: Path, fault: str = "pass") -> list[str]:
    (folder / "reader.py").write_text(HEAD + BODY.replace("FAULT", fault))
    (folder / "files").mkdir(exist_ok=True)
    (folder / "files" / "one.bin").write_bytes(b"x")
    return ["--datasets", f"python:{folder / 'reader.py'}:episodes", "--source", str(folder / "files")]


def convert(arguments: list[str], out: Path, *more: str) -> int:
    return main([*arguments, "--output", str(out), "--num-workers", "1", "--layout", "frames", *more])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("steps['action'] = 5 if number == 1 else steps['action']", "action is int 5, expected an array or a list"),
        (
            "steps['action'] = {1, 2, 3} if number == 1 else steps['action']",
            "action is set {1, 2, 3}, expected an array",
        ),
        ("steps['text'][1] = '\\ud800' if number == 1 else ''", "has a lone surrogate"),
        ("number == 2 and sys.exit('enough')", "line 21: SystemExit: enough"),
        ("number == 2 and [][1]", "line 21: IndexError: list index out of range"),
        ("if number == 2: raise ValueError('\\ud800')", "ValueError: \\ud800"),
    ],
)
def test_a_fault_in_one_episode_is_listed_and_the_others_are_converted(
    tmp_path: Path, fault: str, message: str
) -> None:
    arguments = write(tmp_path, fault)
    assert convert(arguments, tmp_path / "out") == EXIT_DAMAGED
    folder = tmp_path / "out/reader/1.0.0"
    (row,) = map(json.loads, (folder / "quarantine.jsonl").read_text().splitlines())
    assert message in row["detail"] and row["source_file"] == "one.bin"
    assert json.loads((folder / "dataset.json").read_text())["episodes"] == 3


@pytest.mark.parametrize("line", ["sys.exit(3)", "raise KeyError('no')", "import no_such_module"])
def test_a_module_that_exits_or_fails_is_one_error(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = write(tmp_path)
    (tmp_path / "reader.py").write_text(f"{HEAD}\n{line}\n{BODY.replace('FAULT', 'pass')}")
    assert convert(arguments, tmp_path / "out") == EXIT_USAGE
    assert "reader.py: reader.py, line 8: " in capsys.readouterr().err


def test_what_a_function_prints_is_not_in_the_output_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = write(tmp_path)
    assert draft([arguments[1], *arguments[2:], "--json"]) == 0
    shown = capsys.readouterr()
    assert "reader" in json.loads(shown.out)["datasets"]
    assert "hello from the module" in shown.err and "hello from /" in shown.err


def test_other_arguments_of_the_function_are_another_conversion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = write(tmp_path)
    config = tmp_path / "arm.yaml"
    for scale, code in ((1, 0), (1, 0), (2, EXIT_USAGE)):
        config.write_text(f"datasets: {{arm: {{source: '{arguments[1]}', layout: {{scale: {scale}}}}}}}")
        chosen = ["--datasets", "arm", *arguments[2:]]
        assert convert(chosen, tmp_path / "out", "--config", str(config)) == code
    assert "whose files are not those of" in capsys.readouterr().err


def test_floats_that_may_be_pictures_are_named_where_there_is_no_camera(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = write(tmp_path, "steps['front'] = steps['front'].astype(np.float32)")
    assert convert(arguments, tmp_path / "out") == EXIT_USAGE
    assert "no feature is pictures: front is float32 (16, 16, 3); yield uint8" in capsys.readouterr().err
