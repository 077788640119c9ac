"""``pairstream`` and ``python -m pairstream``: one command for all programs of the project."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from convert import __version__
from stream.storage.errors import closest

COMMANDS = {
    "convert": ("convert.run", "convert datasets"),
    "draft": ("convert.draft", "print what a dataset says of itself, as YAML to correct"),
    "verify": ("convert.verify", "check the files of a converted root against its manifests"),
    "doctor": ("convert.doctor", "find mistakes in the data itself"),
    "sample": ("convert.sample", "generate small datasets with the real schemas, for trials"),
    "reindex": ("convert.reindex", "compute derived columns and statistics again, without reading images"),
    "info": ("stream.info", "print what a converted root holds, and what filters leave of it"),
    "browse": ("stream.browse", "look at converted data in a browser: datasets, episodes, mixtures, runs"),
    "view": ("stream.view", "show an episode in Rerun, or save it as a recording"),
    "replay": ("stream.replay", "show the batch of any step of a run"),
    "fetch": ("stream.fetch", "copy the shards and index of a mixture to this machine"),
    "label": ("stream.label", "add columns to the steps of a converted dataset"),
    "export": ("stream.export", "write episodes of a converted root as a LeRobot dataset"),
}
"""Module and purpose of each subcommand."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the module of a subcommand, as ``python -m`` does; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        return 0 if given else 2
    if given[0] == "--version":
        print(f"pairstream {__version__}")
        return 0
    name, *rest = given
    if name not in COMMANDS:
        print(f"error: no command {name!r}; {closest(name, COMMANDS, noun='commands')}", file=sys.stderr)
        return 2
    sys.argv = [name, *rest]
    runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)
    return 0


def _help() -> str:
    lines = ["usage: pairstream COMMAND ...", "", "commands:"]
    lines += [f"  {name:<8} {purpose} (python -m {module})" for name, (module, purpose) in COMMANDS.items()]
    return "\n".join(
        [*lines, "", "`pairstream COMMAND --help` lists the options of a command, `pairstream --version` the version."]
    )


if __name__ == "__main__":
    sys.exit(main())
