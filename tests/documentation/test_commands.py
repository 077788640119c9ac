"""The commands of the pages have the options that they are given there."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.documentation.blocks import PAGES, blocks
from tests.fixtures.command import REPOSITORY, run

_COMMAND = re.compile(r"(?:python -m ([\w.]+)|examples/(\w+)\.py)((?:(?!python -m )[^|#])*)")


def _commands() -> list[Any]:
    """Return each command of the pages: its module, and the options that it is given."""
    found = []
    for page in PAGES:
        text = (REPOSITORY / page).read_text()
        code = "".join([*blocks(page, ""), *blocks(page, "bash")]).replace("\\\n", " ")
        for line in [*code.splitlines(), *re.findall(r"`(python -m [^`]+)`", text)]:
            for module, example, rest in _COMMAND.findall(line):
                options = tuple(re.findall(r"(?<![\w-])--[a-z][\w-]*", rest))
                if options and "pytest" not in module and "apache_beam" not in module:
                    name = module or f"examples.{example}"
                    found.append(pytest.param(name, options, id=f"{page}: {name} {' '.join(options)}"))
    return found


@functools.cache
def _options(module: str) -> set[str]:
    """Return the options of a command, by its --help."""
    if module.startswith("examples."):
        program = [sys.executable, module.replace(".", "/") + ".py", "--help"]
        shown = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    else:
        done = run("--help", module=module)
        assert done.code == 0, done.err
        shown = done.out
    return set(re.findall(r"--[a-z][\w-]*", shown)) | {"--help"}


@functools.cache
def _beam_options() -> set[str]:
    """Return those of Beam, which convert.run hands on."""
    from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

    parser = _BeamArgumentParser(add_help=False, conflict_handler="resolve")
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    return {name for action in parser._actions for name in action.option_strings}


@pytest.mark.long
@pytest.mark.parametrize(("module", "options"), _commands())
def test_commands_have_the_options_that_they_are_given(module: str, options: tuple[str, ...]) -> None:
    missing = set(options) - _options(module)
    if module == "convert.run":
        missing -= _beam_options()
    assert not missing


def test_there_are_commands() -> None:
    modules = {parameters.values[0] for parameters in _commands()}
    assert {
        "convert.run",
        "convert.sample",
        "pairstream.replay",
        "pairstream.fetch",
        "bench.loader",
        "examples.train_jax",
    } < modules


def test_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = (REPOSITORY / page).read_text()
        named = re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, page
