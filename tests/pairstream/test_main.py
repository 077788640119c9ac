from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pairstream.__main__ import main
from stream.base.errors import EXIT_PIPE, EXIT_USAGE
from tests.fixtures.command import REPOSITORY, TIMEOUT


@pytest.mark.parametrize(
    ("word", "command"), [("repair", "verify"), ("visualize", "browse"), ("download", "fetch"), ("exprot", "export")]
)
def test_a_word_that_is_no_command_leads_to_the_command_that_does_it(
    word: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "ROOT"]) == EXIT_USAGE
    assert capsys.readouterr().err == f"error: no command '{word}'; did you mean '{command}'?\n"


@pytest.mark.parametrize(
    "arguments", ["pairstream --help", "pairstream --version", "pairstream registry --help", "convert.run --help"]
)
def test_a_reader_that_leaves_ends_the_program_without_a_word(arguments: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    # Unbuffered, as this variable makes it, argparse itself passes over the error.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open(write_end, "wb") as output:
        program = [sys.executable, "-m", *arguments.split()]
        result = subprocess.run(
            program, cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.PIPE, timeout=TIMEOUT
        )
    assert (result.returncode, result.stderr) == (EXIT_PIPE, b"")


def test_without_an_output_the_program_ends_well() -> None:
    program = ["sh", "-c", f"exec {sys.executable} -m pairstream --version >&-"]
    result = subprocess.run(program, cwd=REPOSITORY, stderr=subprocess.PIPE, timeout=TIMEOUT)
    assert (result.returncode, result.stderr) == (0, b"")
