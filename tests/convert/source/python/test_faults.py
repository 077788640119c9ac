"""Whatever a function of one's own does, one episode is listed or one error says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convert.draft import main as draft
from convert.errors import EXIT_DAMAGED, EXIT_USAGE
from convert.run.command import main
from tests.fixtures.datasets.own_files import FUNCTION, write_files

FAULTY = FUNCTION.replace("yield {", "episode = {") + "            FAULT\n            yield episode\n"


def write(folder: Path, fault: str) -> list[str]:
    return write_files(folder, files=1, episodes=3, code=FAULTY.replace("FAULT", fault))


def convert(arguments: list[str], output: Path) -> int:
    return main([*arguments, "--output", str(output), "--num-workers", "1", "--layout", "frames"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("if number == 1: episode['steps']['action'] = 5", "action is int 5, expected an array or a list"),
        ("if number == 1: episode['steps']['action'] = {1, 2, 3}", "action is set {1, 2, 3}, expected an array"),
        ("if number == 1: episode['episode']['language_instruction'] = '\\ud800'", "has a lone surrogate"),
        ("number == 2 and sys.exit('enough')", "line 14: NameError: name 'sys' is not defined"),
        ("number == 2 and exit('enough')", "take0.npz: episode 2: reader.py, line 14: SystemExit: enough"),
        ("if number == 2: raise ValueError('\\ud800')", "ValueError: \\ud800"),
    ],
)
def test_a_fault_in_one_episode_is_listed_and_the_others_are_converted(
    tmp_path: Path, fault: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(write(tmp_path, fault), tmp_path / "out") == EXIT_DAMAGED
    assert "damaged input was left out: reader (1)" in capsys.readouterr().err
    folder = tmp_path / "out/reader/1.0.0"
    (row,) = map(json.loads, (folder / "quarantine.jsonl").read_text().splitlines())
    assert message in row["detail"] and row["source_file"] == "take0.npz"
    assert json.loads((folder / "dataset.json").read_text())["episodes"] == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def episodes", "def episode", "no function 'episodes'; did you mean 'episode'?"),
        ("import numpy", "import nunpy", "reader.py, line 2: ModuleNotFoundError: No module named 'nunpy'"),
        ("def episodes", "exit(3)\ndef episodes", "reader.py: reader.py, line 4: SystemExit: 3"),
        ("yield {", "yield {{", "SyntaxError"),
        ('"steps"', '"step"', "the function yields the keys step, episode, expected"),
        ("yield {", "yield 5, {", "the function yields a tuple, expected"),
        (
            "def episodes(path, only=None):",
            "def episodes(path):\n    return 5\ndef other(path):",
            "'int' object is not",
        ),
        ('stored[f"front{number}"]', 'stored[f"front{number}"] / 255', "front is float64 (32, 48, 3); yield uint8"),
    ],
)
def test_a_wrong_module_is_one_error_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert convert(write_files(tmp_path, code=FUNCTION.replace(old, new)), tmp_path / "out") == EXIT_USAGE
    error = capsys.readouterr().err
    assert message in error and error.count("error:") == 1
    assert not (tmp_path / "out").exists()


def test_what_a_function_prints_is_not_in_the_output_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\nprint('hello from the module')\n"
    arguments = write_files(tmp_path, code=f"{head}{FAULTY}".replace("FAULT", "print('hello from', path)"))
    with (tmp_path / "reader.py").open("a") as module:
        module.write("@dataclass\nclass Arm:\n    steps: tuple[int, ...] = ()\n")
    assert draft([arguments[1], *arguments[2:], "--json"]) == 0
    shown = capsys.readouterr()
    assert "reader" in json.loads(shown.out)["datasets"]
    assert "hello from the module" in shown.err and "hello from /" in shown.err
