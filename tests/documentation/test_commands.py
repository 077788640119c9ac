"""The commands of the pages have the options that they are given there."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from typing import Any

import pytest

from pairstream.__main__ import COMMANDS
from tests.documentation.blocks import PAGES, blocks
from tests.fixtures.command import REPOSITORY

_COMMAND = re.compile(
    r"(python -m [\w.]+|\bpairstream (?!-)[\w]+|examples/\w+\.py)((?:(?!python -m |pairstream )[^|#])*)"
)


def _commands() -> list[Any]:
    """Return each command of the pages, with its options there."""
    commands = []
    for page in PAGES:
        text = (REPOSITORY / page).read_text()
        code = "".join([*blocks(page, ""), *blocks(page, "bash")]).replace("\\\n", " ")
        for line in [*code.splitlines(), *re.findall(r"`((?:python -m|pairstream) [^`]+)`", text)]:
            for command, arguments in _COMMAND.findall(line):
                options = tuple(re.findall(r"(?<![\w-])--[a-z][\w-]*", arguments))
                if options and not re.search("pytest|apache_beam|pip", command):
                    commands.append(pytest.param(command, options, id=f"{page}: {command} {' '.join(options)}"))
    return commands


@functools.cache
def _options(command: str) -> set[str]:
    """Return the options of a command, by its --help."""
    program, *arguments = command.split()
    start = {"python": [sys.executable], "pairstream": [sys.executable, "-m", "pairstream"]}
    shown = subprocess.run(
        [*start.get(program, [sys.executable, program]), *arguments, "--help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"--[a-z][\w-]*", shown.stdout)) | {"--help"}


@functools.cache
def _beam_options() -> set[str]:
    """Return the options of Beam, which convert.run passes on."""
    from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

    parser = _BeamArgumentParser(add_help=False, conflict_handler="resolve")
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    return {name for action in parser._actions for name in action.option_strings}


@pytest.mark.long
@pytest.mark.parametrize(("command", "options"), _commands())
def test_commands_have_the_options_of_the_pages(command: str, options: tuple[str, ...]) -> None:
    missing = set(options) - _options(command)
    if command in ("python -m convert.run", "pairstream convert"):
        missing -= _beam_options()
    assert not missing


def test_there_are_commands() -> None:
    programs = {"python -m convert.run", "python -m bench.loader", "examples/train_jax.py"}
    programs |= {f"pairstream {name}" for name in ("sample", "replay", "fetch", "info", "export")}
    assert programs < {parameters.values[0] for parameters in _commands()}


def test_programs_are_run_by_the_command_pairstream() -> None:
    modules = {f"python -m {command_module}" for command_module, _ in COMMANDS.values()}
    modules |= {module.removesuffix(".command") for module in modules}
    named = {command for page in PAGES for command in re.findall(r"python -m [\w.]+", (REPOSITORY / page).read_text())}
    assert named & modules <= {"python -m convert.run"}


def test_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = (REPOSITORY / page).read_text()
        named = re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, page
