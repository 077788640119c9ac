"""The command line of ``python -m convert.run``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Literal

from stream.base.arguments import Parser
from stream.format.names import LAYOUTS

Command = Literal["convert", "remove", "finalize"]
"""Subcommand: ``convert`` without a word, or the first word of the command line."""

_Add = Callable[..., argparse.Action]
_DESCRIPTIONS: Mapping[Command, str] = {
    "convert": "Convert robot datasets (Open X-Embodiment, LeRobot, your own files) to ArrayRecord shards. `pairstream "
    "convert finalize` completes what tasks have converted, `pairstream convert remove` removes converted datasets.",
    "remove": "Remove converted datasets, and convert nothing; tasks may then convert them again.",
    "finalize": "Convert no shard: merge and write the manifests of all that the tasks have finished, and list missing "
    "shards. It takes the options of the conversion.",
}
_EPILOGS: Mapping[Command, str] = {
    "convert": """\
Other options are passed to Apache Beam unchanged (--runner, --dask_client_address, --project, --region, ...).

exit codes:
  0    complete, or this task's share of it is done
  1    failed; what was finished stays, and the same command continues
  2    a wrong name, path, option or configuration; nothing was started
  3    complete, but damaged input was left out; see quarantine.jsonl
  130  interrupted; the same command continues

examples:
  python -m convert.run --datasets bridge,rt1 --source gs://gresearch/robotics --output data/oxe
  python -m convert.run --datasets oxe29 --source gs://gresearch/robotics --output s3://bucket/oxe --staging /scratch
  python -m convert.run --datasets oxe29 --source /mirror/a --source /mirror/b --output data/oxe --dry-run
  python -m convert.run --datasets lerobot:lerobot/pusht --source /hub --output data/lerobot --layout frames
  python -m convert.run --datasets lerobot:lerobot/pusht@v3.0 --output data/lerobot  # from the Hugging Face Hub
  python -m convert.run --datasets root:monday/arm+root:tuesday/arm --output data/both  # two become one dataset
  python -m convert.run --datasets oxe29 --source /mirror --output data/oxe \\
      --task-index $SLURM_ARRAY_TASK_ID --task-count 64
  python -m convert.run --datasets oxe29 --source /mirror --output /scratch/oxe --engine ray --address head:6379
""",
    "remove": """\
exit codes:
  0    removed
  1    failed; the same command continues
  2    a wrong name, path, option or configuration; nothing was removed
  130  interrupted; the same command continues

examples:
  pairstream convert remove --datasets bridge --output data/oxe --dry-run
  pairstream convert remove --datasets bridge --output data/oxe
""",
    "finalize": """\
Other options are passed to Apache Beam unchanged (--runner, --dask_client_address, --project, --region, ...).

exit codes:
  0    complete
  1    failed, or shards are missing; what was finished stays
  2    a wrong name, path, option or configuration; nothing was started
  3    complete, but damaged input was left out; see quarantine.jsonl
  130  interrupted; the same command continues

examples:
  pairstream convert finalize --datasets oxe29 --source /mirror --output data/oxe
""",
}


def build_parser(command: Command = "convert") -> Parser:
    """Return the parser of our own options of a subcommand."""
    parser = Parser(
        prog="pairstream convert" if command == "convert" else f"pairstream convert {command}",
        description=_DESCRIPTIONS[command],
        epilog=_EPILOGS[command],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_datasets(parser.add_argument_group("input and output").add_argument, command)
    if command == "remove":
        parser.add_argument("--dry-run", action="store_true", help="print what would be removed; remove nothing")
        return parser
    group = parser.add_argument_group(
        "frames and pairs", "of root:PATH, a converted dataset, layout, cameras and sizes are kept unless given"
    )
    _add_frames(group.add_argument)
    _add_work(parser.add_argument_group("work").add_argument, command)
    return parser


def _add_datasets(add: _Add, command: Command) -> None:
    add(
        "--datasets",
        required=True,
        help="a mixture (oxe29), names with commas between them, a YAML file, or KIND:PLACE such as lerobot:ORG/NAME, "
        "rlds:PATH or python:FILE.py:FUNCTION; docs/own-data.md has all kinds",
    )
    add(
        "--source",
        action="append",
        default=[],
        help="folder with <tfds_name>/<version> or ORG/NAME below it, local, gs:// or s3://; may be repeated, the "
        "first that has the dataset wins; for python: the files; without it lerobot:ORG/NAME is downloaded from the "
        "Hub",
    )
    purpose = "folder with" if command == "remove" else "folder to write"
    add("--output", required=True, help=f"{purpose} <dataset>/<version> in it, local, gs:// or s3://")
    add("--config", action="append", default=[], help="YAML with your own datasets, mixtures and declarations")
    if command != "remove":
        add(
            "--episodes",
            help="only these, in TFDS's grammar: 'train+val', 'train[:5%%]', 'train[:100]+val'; or a JSON file of "
            'lists by dataset, {"droid": {"leave_out": ["*/failure/*"]}}, and for some splits train:FILE.json '
            "(default: all splits that have episodes)",
        )


def _add_frames(add: _Add) -> None:
    add(
        "--layout",
        choices=LAYOUTS,
        help="pairs of one camera, or frames: each frame of each camera once, for windows chosen when loading "
        "(default: pairs)",
    )
    add(
        "--cameras",
        metavar="A,B",
        help="cameras by role or name, or all, or depth; of pairs one, by path too (default: primary)",
    )
    add(
        "--image-size",
        help="256, HxW or native; by camera with --layout frames: primary:256x256,wrist:128x128 (default: 256)",
    )
    add(
        "--resize",
        choices=("stretch", "crop", "pad"),
        default="stretch",
        help="how to fit another aspect ratio (default: stretch)",
    )
    add(
        "--codec",
        help="jpeg; raw: the pixels as they are, ten times as large and read without decoding; with --layout frames "
        "also h264 or av1: a tenth of the size, slower to decode, and by camera: primary:h264,wrist:jpeg (default: "
        "jpeg)",
    )
    add("--quality", type=int, help="JPEG quality of frames that are encoded again (default: 95)")
    add("--subsampling", choices=("420", "444"), help="chroma of frames that are encoded again (default: 420)")
    add("--gop", type=int, metavar="N", help="frames of a record of h264 or av1, 1 to 64 (default: 8)")
    add("--crf", type=int, metavar="N", help="quality of h264 (default: 18) or av1 (default: 30); lower is better")
    add("--offset", help="distance of a pair: steps (5) or seconds (0.6s); default: the mixture's, else the registry's")
    add("--frames", help="which of [t, t+offset] to store: endpoints, all, stride:S or fixed:N (default: endpoints)")
    add(
        "--leave-out",
        action="append",
        metavar="PATTERN",
        help="feature not to convert, e.g. 'observation/masks_*'; replaces the registry's list, which has "
        "sentence embeddings ('*language_embedding'); 'none' keeps all, wide features too",
    )


def _add_work(add: _Add, command: Command) -> None:
    add(
        "--on-error",
        choices=("quarantine", "fail"),
        default="quarantine",
        help="leave damaged input out and list it, or stop (default: quarantine)",
    )
    add("--engine", choices=("beam", "ray"), default="beam", help="what runs the workers (default: beam)")
    add("--address", metavar="HOST:PORT", help="running Ray cluster, or auto (default: RAY_ADDRESS, else this machine)")
    add(
        "--num-workers",
        type=int,
        help="local processes (default: the cores that affinity and control groups leave to this process); on a Ray "
        "cluster most jobs at once (default: one a core)",
    )
    add(
        "--staging",
        metavar="DIR",
        help="local folder for files on their way to gs:// or s3://; each worker needs the size of one output shard "
        "(default: TMPDIR)",
    )
    if command == "convert":
        add("--task-index", type=int, default=0, help="share of the shards that this process takes, from 0")
        add("--task-count", type=int, default=1, help="number of shares (default: 1)")
        add(
            "--overwrite",
            action="store_true",
            help="convert everything again; the earlier conversion stays until the new one is complete",
        )
        add(
            "--redo",
            metavar="SHARD",
            action="append",
            default=[],
            help="convert this shard (train-00001-of-00004) again, even if it is complete; may be repeated",
        )
        add("--dry-run", action="store_true", help="print what would be done and what is finished; write nothing")
    add("--verbose", action="store_true", help="show the log of Beam and its runner")
    add("--json", action="store_true", help="print the result as JSON")


def option_flags(command: Command) -> list[str]:
    """Return the flags of our options, to suggest one for a typo."""
    return [flag for action in build_parser(command)._actions for flag in action.option_strings]
