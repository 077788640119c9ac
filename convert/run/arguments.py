"""The command line of ``python -m convert.run``."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence, Set
from typing import TypeVar

from convert.command import split_names
from convert.errors import UsageError
from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from convert.shard.pairs import check_frames, check_offset
from convert.shard.video import MOST_CRF, check_encoder
from stream.base.errors import closest
from stream.base.machine import usable_processors
from stream.format.episode_list import EpisodeList, read_by_name, read_list
from stream.format.frame import CODECS, Codec
from stream.format.names import LAYOUTS
from stream.format.video import MAX_GOP, VIDEO_CODECS

_SIZE = re.compile(r"([0-9]{1,5})(?:x([0-9]{1,5}))?")
_MAX_SIDE = 8192
T = TypeVar("T")

_EPILOG = """\
Any other option goes to Apache Beam (--runner, --dask_client_address, --project, --region, ...).

exit codes:
  0    complete, or this task's share of it is done
  1    failed, or --finalize found shards missing; what was finished stays, and the same command goes on from there
  2    a wrong name, path, option or configuration; nothing was started
  3    complete, but damaged input was left out; see quarantine.jsonl
  130  interrupted; the same command goes on

examples:
  python -m convert.run --datasets bridge,rt1 --source gs://gresearch/robotics --output data/oxe
  python -m convert.run --datasets oxe29 --source gs://gresearch/robotics --output s3://bucket/oxe --staging /scratch
  python -m convert.run --datasets oxe29 --source /mirror/a --source /mirror/b --output data/oxe --dry-run
  python -m convert.run --datasets lerobot:lerobot/pusht --source /hub --output data/lerobot --layout frames
  python -m convert.run --datasets lerobot:lerobot/pusht@v3.0 --output data/lerobot  # from the Hugging Face Hub
  python -m convert.run --datasets root:monday/arm+root:tuesday/arm --output data/both  # two become one dataset
  python -m convert.run --datasets oxe29 --source /mirror --output data/oxe \\
      --task-index $SLURM_ARRAY_TASK_ID --task-count 64
  python -m convert.run --datasets oxe29 --source /mirror --output data/oxe --finalize
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of our own options."""
    parser = argparse.ArgumentParser(
        prog="python -m convert.run",
        description="Convert robot datasets (Open X-Embodiment, LeRobot, files of your own) to ArrayRecord shards.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument_group("input and output").add_argument
    add(
        "--datasets",
        required=True,
        help="a mixture (oxe29), names with commas between, a YAML file, or KIND:PLACE such as lerobot:ORG/NAME, "
        "rlds:PATH or python:FILE.py:FUNCTION; docs/own-data.md has all kinds",
    )
    add(
        "--source",
        action="append",
        default=[],
        help="folder with <tfds_name>/<version> or ORG/NAME below it, local, gs:// or s3://; may be repeated, the "
        "first that has the dataset wins; for python: the files; without it lerobot:ORG/NAME comes from the Hub",
    )
    add("--output", required=True, help="folder to write <dataset>/<version> into, local, gs:// or s3://")
    add("--config", action="append", default=[], help="YAML with datasets, mixtures and declarations of your own")
    add("--splits", help="splits with commas between (default: all that have episodes)")
    add(
        "--episodes",
        help="only these, in TFDS's grammar: 'train[:5%%]', 'train[:100]+val'; or a JSON file of lists by dataset, "
        '{"droid": {"leave_out": ["*/failure/*"]}}',
    )

    add = parser.add_argument_group(
        "frames and pairs", "of root:PATH, a converted dataset, layout, cameras and sizes are kept unless given"
    ).add_argument
    add(
        "--layout",
        choices=LAYOUTS,
        help="pairs of one camera, or frames: each frame of each camera once, for windows chosen when loading "
        "(default: pairs)",
    )
    add("--camera", help="camera of the pairs by role, name or path (default: primary)")
    add("--cameras", metavar="A,B", help="cameras of --layout frames by role or name; all, or depth (default: primary)")
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
    add("--subsampling", choices=("420", "444"), help="chroma of such frames (default: 420)")
    add("--gop", type=int, metavar="N", help="frames of a record of h264 or av1, 1 to 64 (default: 8)")
    add("--crf", type=int, metavar="N", help="quality of h264 (default: 18) or av1 (default: 30); lower is better")
    add("--offset", help="distance of a pair: steps (5) or seconds (0.6s); default: the mixture's, else the registry's")
    add(
        "--frames",
        help="which of [t, t+offset] to store: endpoints, all, stride:S or fixed:N (default: endpoints)",
    )
    add(
        "--leave-out",
        action="append",
        metavar="PATTERN",
        help="feature not to convert, e.g. 'observation/masks_*'; replaces the registry's list, which has "
        "sentence embeddings ('*language_embedding'); 'none' keeps all, wide features too",
    )

    add = parser.add_argument_group("work").add_argument
    add(
        "--on-error",
        choices=("quarantine", "fail"),
        default="quarantine",
        help="leave damaged input out and list it, or stop (default: quarantine)",
    )
    add(
        "--num-workers",
        type=int,
        default=usable_processors(),
        help="local processes (default: the cores that affinity and control groups leave to this process)",
    )
    add("--task-index", type=int, default=0, help="share of the shards that this process takes, from 0")
    add("--task-count", type=int, default=1, help="number of shares (default: 1)")
    add(
        "--staging",
        metavar="DIR",
        help="local folder for files on their way to gs:// or s3://, as much as a shard's output a worker "
        "(default: TMPDIR)",
    )
    add(
        "--finalize",
        action="store_true",
        help="convert no shard: merge and write the manifests of what all tasks together have finished, and list what "
        "is missing",
    )
    add(
        "--overwrite",
        action="store_true",
        help="convert everything again beside the earlier conversion, which stays until the new one is complete",
    )
    add(
        "--remove",
        action="store_true",
        help="remove what was converted of --datasets, and convert nothing; tasks may then convert them again",
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
    return parser


def check_arguments(arguments: argparse.Namespace) -> ConvertConfig:
    """Return the options of the conversion.

    Raises:
        UsageError: A value is out of range or in no known form, or options exclude each other.
    """
    if arguments.splits is not None and arguments.episodes is not None and not _is_file(arguments.episodes):
        raise UsageError("--splits and --episodes exclude each other; --episodes names its splits itself")
    _check_range("quality", arguments.quality, 1, 100)
    if arguments.num_workers < 1:
        raise UsageError(f"--num-workers {arguments.num_workers}: expected 1 or more")
    if not 0 <= arguments.task_index < arguments.task_count:
        raise UsageError(
            f"--task-index {arguments.task_index} --task-count {arguments.task_count}: "
            "the index goes from 0 to count - 1"
        )
    if arguments.overwrite and arguments.task_count > 1:
        raise UsageError(
            "--overwrite would remove the work of the other tasks; run it once without --task-count, or remove the old "
            "conversion with --remove before the tasks"
        )
    if arguments.remove and (arguments.overwrite or arguments.finalize or arguments.redo or arguments.task_count > 1):
        raise UsageError("--remove goes without --overwrite, --finalize, --redo and --task-count: it converts nothing")
    if arguments.finalize and (arguments.overwrite or arguments.dry_run or arguments.task_count > 1):
        raise UsageError("--finalize goes without --overwrite, --dry-run and --task-count: it only looks at all shards")
    if arguments.redo and (arguments.overwrite or arguments.finalize):
        raise UsageError("--redo goes without --overwrite and --finalize: it converts single shards again")
    if arguments.layout == "pairs" and arguments.cameras is not None:
        raise UsageError("--cameras goes with --layout frames; a pair is of one camera, see --camera")
    if arguments.layout == "frames" and arguments.camera is not None:
        raise UsageError("--camera goes with --layout pairs; give --cameras, with commas between")
    if arguments.layout == "frames" and arguments.frames != "endpoints":
        raise UsageError("--frames goes with --layout pairs; --layout frames stores every frame")
    for name in ("output", "camera", "cameras", "staging"):
        if getattr(arguments, name) == "":
            raise UsageError(f"--{name} is empty; is a variable of the shell not set?")
    if arguments.staging is not None and not os.path.isdir(arguments.staging):
        raise UsageError(f"--staging {arguments.staging}: no such folder; make it on every machine that converts")
    if arguments.offset is not None:
        check_offset(arguments.offset)
    layout, default = arguments.layout, FramePolicy()
    size, sizes = _by_camera(arguments.image_size, "image-size", layout, parse_size, default.size)
    codec, codecs = _by_camera(arguments.codec, "codec", layout, _codec, default.codec)
    _check_codecs(arguments, {codec, *codecs.values()})
    policy = FramePolicy(
        size=size,
        resize=arguments.resize,
        quality=arguments.quality or default.quality,
        subsampling=arguments.subsampling or default.subsampling,
        codec=codec,
    )
    splits = split_names(arguments.splits, "splits")
    return ConvertConfig(
        layout=arguments.layout,
        cameras=tuple(split_names(arguments.cameras, "cameras") or ("primary",)),
        image_sizes=sizes,
        splits=None if splits is None else tuple(splits),
        episodes=None if _is_file(arguments.episodes) else arguments.episodes,
        camera=arguments.camera,
        codecs=codecs,
        gop=arguments.gop or ConvertConfig.gop,
        crf=arguments.crf,
        policy=policy,
        offset=arguments.offset,
        frames=check_frames(arguments.frames),
        leave_out=arguments.leave_out and tuple(pattern for pattern in arguments.leave_out if pattern != "none"),
        on_error=arguments.on_error,
        staging=os.path.abspath(arguments.staging) if arguments.staging else None,
    )


def _check_range(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise UsageError(f"--{name} {value}: expected {least} to {most}")


def _check_codecs(arguments: argparse.Namespace, codecs: Set[Codec]) -> None:
    """Raise UsageError for options that do not go with the codecs."""
    video = [codec for codec in VIDEO_CODECS if codec in codecs]
    if video and arguments.layout == "pairs":
        raise UsageError(
            f"--codec {video[0]} goes with --layout frames; a pair is two frames that are no successive ones"
        )
    named = [name for name in ("gop", "crf") if getattr(arguments, name) is not None]
    if named and not video:
        raise UsageError(f"--{named[0]} is for --codec h264 and av1; JPEG has --quality")
    named = [name for name in ("quality", "subsampling") if getattr(arguments, name) is not None]
    if named and "jpeg" not in codecs:
        raise UsageError(f"--{named[0]} is for --codec jpeg; {video[0] + ' has --crf' if video else 'raw is exact'}")
    _check_range("gop", arguments.gop, 1, MAX_GOP)
    _check_range("crf", arguments.crf, 0, min((MOST_CRF[codec] for codec in video), default=0))
    for codec in video:
        check_encoder(codec)


def _is_file(episodes: str | None) -> bool:
    return episodes is not None and episodes.endswith(".json")


def read_episode_lists(episodes: str | None, datasets: Sequence[str]) -> dict[str, EpisodeList]:
    """Return the lists of the file that ``--episodes`` names, by dataset; empty if it is no file.

    Raises:
        ArgumentError: The file cannot be read, or is not a list of episodes by dataset.
    """
    if not _is_file(episodes):
        return {}
    values = read_by_name(episodes, datasets, "--episodes")
    return {name: read_list(value, f"--episodes {episodes}: {name}") for name, value in values.items()}


def _by_camera(text: str, option: str, layout: str, parse: Callable[[str], T], default: T) -> tuple[T, dict[str, T]]:
    """Return an option as its value for all cameras, and its values by role or name."""
    if ":" not in text:
        return parse(text), {}
    if layout == "pairs":
        raise UsageError(f"--{option} {text!r}: values by camera go with --layout frames")
    values = {}
    for part in text.split(","):
        camera, colon, given = part.strip().partition(":")
        if colon:
            if camera in values:
                raise UsageError(f"--{option} {text!r:.100}: {camera} is named twice")
            values[camera] = parse(given)
        else:
            default = parse(camera)
    return default, values


def _codec(text: str) -> Codec:
    if text not in CODECS:
        raise UsageError(f"--codec {text!r}: {closest(text, CODECS, noun='codecs')}")
    return text


def parse_size(text: str) -> tuple[int, int] | None:
    """Return ``--image-size`` as (height, width), None for ``native``.

    >>> parse_size("256"), parse_size("180x320"), parse_size("native")
    ((256, 256), (180, 320), None)
    """
    if text == "native":
        return None
    match = _SIZE.fullmatch(text)
    if not match:
        raise UsageError(f"--image-size {text!r} is none of: 256, HxW (180x320), native")
    height, width = int(match[1]), int(match[2] or match[1])
    if not (1 <= height <= _MAX_SIDE and 1 <= width <= _MAX_SIDE):
        raise UsageError(f"--image-size {text!r}: sides go from 1 to {_MAX_SIDE}")
    return height, width
