"""One request of ``python -m convert.run``: the options of its command line, typed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from convert.engine.engine import EngineName
from convert.run.arguments import Command, build_parser, option_flags
from stream.base.errors import closest
from stream.format.names import Layout
from stream.storage.remote import is_remote


@dataclass(frozen=True, kw_only=True)
class ConvertRequest:
    """Options of the command line, named as on it; None for an option that was not given.

    Attributes:
        command: Subcommand; the options that it lacks have their defaults.
        beam_arguments: Further options, which are passed to Apache Beam.
    """

    command: Command
    datasets: str
    source: tuple[str, ...]
    output: str
    config: tuple[str, ...]
    episodes: str | None = None
    layout: Layout | None = None
    cameras: str | None = None
    image_size: str | None = None
    resize: Literal["stretch", "crop", "pad"] = "stretch"
    codec: str | None = None
    quality: int | None = None
    subsampling: Literal["420", "444"] | None = None
    gop: int | None = None
    crf: int | None = None
    offset: str | None = None
    frames: str | None = None
    leave_out: tuple[str, ...] | None = None
    on_error: Literal["quarantine", "fail"] = "quarantine"
    engine: EngineName = "beam"
    address: str | None = None
    num_workers: int | None = None
    task_index: int = 0
    task_count: int = 1
    staging: str | None = None
    overwrite: bool = False
    redo: tuple[str, ...] = ()
    dry_run: bool = False
    verbose: bool = False
    json: bool = False
    beam_arguments: tuple[str, ...] = ()

    def with_absolute_paths(self) -> ConvertRequest:
        """Return the request with absolute local paths, as workers may run in other folders."""
        return replace(self, source=tuple(map(_absolute, self.source)), output=_absolute(self.output))


def parse_request(arguments: Sequence[str] | None = None) -> ConvertRequest:
    """Return the request that a command line makes, by default that of this process."""
    command: Command = "convert"
    match words := list(sys.argv[1:] if arguments is None else arguments):
        case ["remove" | "finalize" as command, *words]:
            pass
        case [str(word), *_] if not word.startswith("-"):
            hint = closest(word, ("remove", "finalize"), noun="subcommands")
            build_parser().error(f"no subcommand {word!r}; {hint}; without one, datasets are converted")
    parser = build_parser(command)
    parsed, other_arguments = parser.parse_known_args(words)
    if message := _old_option(parsed, other_arguments) or _foreign_option(command, other_arguments):
        parser.error(message)
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in vars(parsed).items()
    }
    return ConvertRequest(command=command, **options, beam_arguments=tuple(other_arguments))


def _old_option(parsed: argparse.Namespace, other_arguments: Sequence[str]) -> str | None:
    """Return the error about the first option of earlier versions, with the form to write."""
    for position, argument in enumerate(other_arguments):
        option_name, equals_sign, value = argument.partition("=")
        if not equals_sign:
            value = next(iter(other_arguments[position + 1 :]), "")
        match option_name:
            case "--camera":
                return f"--camera is now --cameras, in both layouts; write --cameras {value}"
            case "--splits":
                expression = "+".join(filter(None, map(str.strip, value.split(","))))
                episode_list = getattr(parsed, "episodes", None) or ""
                file_suffix = f":{episode_list}" if episode_list.endswith(".json") else ""
                return f"--splits is now a part of --episodes; write --episodes {expression}{file_suffix}"
            case "--finalize" | "--remove":
                command = f"pairstream convert {option_name[2:]}"
                return f"{option_name} is now a subcommand; write {command} --datasets ... --output ..."
    return None


def _foreign_option(command: Command, other_arguments: Sequence[str]) -> str | None:
    """Return the error about the first argument that a subcommand does not take."""
    for argument in other_arguments:
        if argument.partition("=")[0] in option_flags("convert"):
            return f"{argument} is an option of pairstream convert, not of pairstream convert {command}"
    if command == "remove" and other_arguments:
        return f"unknown option {other_arguments[0]}"
    return None


def _absolute(path: str) -> str:
    return path if is_remote(path) or not path else os.path.abspath(path)
