"""``pairstream`` and ``python -m pairstream``: one command for all programs of the project."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from convert import __version__
from stream.base.arguments import run_command, run_program
from stream.base.errors import EXIT_USAGE, closest

COMMANDS = {
    "convert": ("convert.run.command", "convert datasets"),
    "draft": ("convert.draft", "describe a dataset as YAML, to be corrected"),
    "verify": ("convert.verify.command", "check the files of a converted root against its manifests"),
    "doctor": ("convert.doctor.command", "find mistakes in the data itself"),
    "sample": ("convert.sample.command", "generate small datasets with the real schemas, for trials"),
    "reindex": ("convert.reindex", "compute derived columns and statistics again, without reading images"),
    "registry": ("convert.registry.command", "print the table of the datasets that the registry describes"),
    "info": ("pairstream.info.command", "show the content of a converted root, and what filters leave of it"),
    "browse": ("pairstream.browse.command", "look at converted data in a browser: datasets, episodes, mixtures, runs"),
    "view": ("pairstream.view.command", "show an episode in Rerun, or save it as a recording"),
    "replay": ("pairstream.replay.command", "show the batch of any step of a run"),
    "fetch": ("pairstream.fetch", "copy the shards and index of a mixture to this machine"),
    "label": ("pairstream.label", "add columns to the steps of a converted dataset"),
    "publish": ("pairstream.publish.command", "upload a converted root to the Hugging Face Hub, with a dataset card"),
    "export": ("pairstream.export.command", "write episodes of a converted root as a LeRobot dataset"),
}
"""Module with the function ``main`` of each command, and the purpose of the command."""

_OTHER_WORDS = {"repair": "verify", "check": "verify", "validate": "verify", "visualize": "browse", "download": "fetch"}
"""Words of other tools for our commands. By spelling alone, ``repair`` would be taken for ``replay``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        return run_command(lambda: print(_help())) or (0 if words else EXIT_USAGE)
    if words[0] == "--version":
        return run_command(lambda: print(f"pairstream {__version__}"))
    command, *options = words
    if command not in COMMANDS:
        hint = closest(_OTHER_WORDS.get(command, command), COMMANDS, noun="commands")
        print(f"error: no command {command!r}; {hint}", file=sys.stderr)
        return EXIT_USAGE
    sys.argv = [f"pairstream {command}", *options]
    run_program(COMMANDS[command][0])


def _help() -> str:
    lines = "\n".join(f"  {command:<8} {purpose}" for command, (_, purpose) in COMMANDS.items())
    hint = "`pairstream COMMAND --help` lists the options of a command, `pairstream --version` the version."
    return f"usage: pairstream COMMAND ...\n\ncommands:\n{lines}\n\n{hint}"


if __name__ == "__main__":
    sys.exit(main())
