"""Command line of ``pairstream label``, which adds columns to the steps of a converted dataset."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pairstream.command import command_parser
from stream.base.arguments import interrupt_on_kill, run_command
from stream.base.errors import ArgumentError
from stream.label.attach import add_labels, list_labels, remove_labels

_EPILOG = """\
TABLE is a parquet, CSV or Arrow file (.parquet, .csv, .arrow, .feather), or a folder of such files. Its keys are
  the episode: episode (number in the split, as in batches), episode_id, or LeRobot's episode_index
  the step:    step or frame_index; or start and stop, for the steps [start, stop); or none, for all steps
or only LeRobot's index. Every other column becomes a column of the steps: for columns, where and other arguments.
A step that the table does not name is missing: mask False, and NaN, 0, False or an empty text.

Runs that stream from the root continue. A kill at any moment leaves the old labels or the new ones.

exit codes:
  0    done
  1    a file is damaged, or the root cannot be written; nothing was changed
  2    a wrong name or option, or a table that does not fit; nothing was changed
  130  interrupted; the labels are the old ones or the new ones

examples:
  pairstream label data/oxe bridge advantage.parquet --split train
  pairstream label data/oxe bridge subtasks.csv --split train --name subtasks
  pairstream label data/oxe bridge advantage.parquet --split train --overwrite
  pairstream label data/oxe bridge --remove advantage
  pairstream label data/oxe bridge
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    interrupt_on_kill()
    return run_command(lambda: _label(options), interrupted="interrupted; the labels are the old ones or the new ones")


def _label(options: argparse.Namespace) -> None:
    option_names = {"table": "TABLE"} | {name: f"--{name}" for name in ("name", "columns", "overwrite", "split")}
    used = [option_names[option] for option in option_names if getattr(options, option) not in (None, False)]
    if options.remove is not None:
        if refused := [option_name for option_name in used if option_name != "--split"]:
            raise ArgumentError(f"--remove takes labels away; leave out {refused[0]}")
        result: dict[str, Any] = remove_labels(options.root, options.dataset, options.remove, split=options.split)
        lines = [f"{result['dataset']}: labels {result['name']} removed from {', '.join(result['splits'])}"]
    elif options.table is None:
        if used:
            raise ArgumentError(f"{used[0]} is for a TABLE to attach; without one, the labels of all splits are listed")
        result = {"splits": list_labels(options.root, options.dataset)}
        lines = [
            f"{split_name} {label_name}: {_columns(columns)}"
            for split_name, split_labels in result["splits"].items()
            for label_name, columns in split_labels.items()
        ]
    else:
        columns = options.columns.split(",") if options.columns is not None else None
        arguments = {"name": options.name, "split": options.split, "columns": columns, "overwrite": options.overwrite}
        result = add_labels(options.root, options.dataset, options.table, **arguments)
        lines = [
            f"{result['dataset']} {split_name}: labels {result['name']}: {_columns(columns)}"
            for split_name, columns in result["splits"].items()
        ]
    print(json.dumps(result, indent=1) if options.json else "\n".join(lines) or f"{options.dataset}: no labels")


def _columns(columns: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{name} {column['type']}" + (f" (missing at {column['missing']:,} steps)" if column["missing"] else "")
        for name, column in columns.items()
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = "Add columns to the steps of a converted dataset, such as advantages, subtasks or latents."
    parser = command_parser("label", description=description, epilog=_EPILOG)
    parser.add_argument("root", metavar="ROOT", help="a converted root on this machine")
    parser.add_argument("dataset", metavar="DATASET", help="a dataset of the root, or NAME:VERSION")
    parser.add_argument("table", metavar="TABLE", nargs="?", help="table to attach; without one, labels are listed")
    parser.add_argument("--split", metavar="S", help="split that the table is of (default: all)")
    parser.add_argument("--name", metavar="N", help="name of the labels (default: their only column, or the file)")
    parser.add_argument("--columns", metavar="A,B", help="columns to attach (default: all but keys and masks)")
    parser.add_argument("--overwrite", action="store_true", help="replace labels of this name")
    parser.add_argument("--remove", metavar="N", help="take these labels away")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    # Options may precede the table.
    return parser.parse_intermixed_args(arguments)
