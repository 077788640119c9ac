"""The checked options of a conversion, from the request of the command."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence, Set
from typing import TypeVar

from convert.command import split_names
from convert.errors import UsageError
from convert.plan import ConvertConfig
from convert.run.request import ConvertRequest
from convert.shard.images import FramePolicy
from convert.shard.pairs import check_frames, check_offset
from convert.shard.video import MOST_CRF, check_encoder
from convert.source.protocol import complete_splits
from stream.base.errors import closest
from stream.format.episode_list import EpisodeList, read_by_name, read_list
from stream.format.frame import CODECS, Codec
from stream.format.names import Layout
from stream.format.video import MAX_GOP, VIDEO_CODECS

_SIZE = re.compile(r"([0-9]{1,5})(?:x([0-9]{1,5}))?")
_MAX_SIDE = 8192
_Value = TypeVar("_Value")


def check_request(request: ConvertRequest) -> ConvertConfig:
    """Return the options of the conversion; raises UsageError for a wrong value, or options that exclude each other."""
    _check_tasks(request)
    expression, _ = _split_episodes(request.episodes)
    _check_values(request, expression)
    layout = request.layout or "pairs"
    cameras = split_names(request.cameras, "cameras") or ["primary"]
    _check_layout(request, layout, cameras)
    default = FramePolicy()
    image_size, image_sizes = _by_camera(request.image_size, "image-size", layout, parse_size, default.size)
    codec, codecs = _by_camera(request.codec, "codec", layout, _parse_codec, default.codec)
    _check_codecs(request, layout, {codec, *codecs.values()})
    splits = complete_splits(expression)
    return ConvertConfig(
        layout=layout,
        cameras=tuple(cameras),
        image_sizes=image_sizes,
        splits=splits or None,
        episodes=expression if splits is None else None,
        codecs=codecs,
        gop=request.gop or ConvertConfig.gop,
        crf=request.crf,
        policy=FramePolicy(
            size=image_size,
            resize=request.resize,
            quality=request.quality or default.quality,
            subsampling=request.subsampling or default.subsampling,
            codec=codec,
        ),
        offset=request.offset,
        frames=check_frames(ConvertConfig.frames if request.frames is None else request.frames),
        leave_out=request.leave_out and tuple(pattern for pattern in request.leave_out if pattern != "none"),
        on_error=request.on_error,
        staging=os.path.abspath(request.staging) if request.staging else None,
    )


def _check_tasks(request: ConvertRequest) -> None:
    """Raise UsageError for options about the work that exclude each other."""
    if request.num_workers is not None and request.num_workers < 1:
        raise UsageError(f"--num-workers {request.num_workers}: expected 1 or more")
    task_index, task_count = request.task_index, request.task_count
    if not 0 <= task_index < task_count:
        raise UsageError(f"--task-index {task_index} --task-count {task_count}: the index goes from 0 to count - 1")
    is_shared = task_count > 1
    if request.overwrite and is_shared:
        raise UsageError(
            "--overwrite would remove the work of the other tasks; run it once without --task-count, or remove the old "
            "conversion with `pairstream convert remove` before the tasks"
        )
    if request.redo and request.overwrite:
        raise UsageError("--redo cannot be combined with --overwrite: it converts single shards again")


def _check_values(request: ConvertRequest, expression: str) -> None:
    """Raise UsageError for values that are empty, out of range or do not exist."""
    _check_range("quality", request.quality, 1, 100)
    if "," in expression and complete_splits(plus_form := expression.replace(",", "+")) is not None:
        raise UsageError(f"--episodes {expression!r}: a plus joins splits, as in TFDS; write {plus_form}")
    for option_name in ("output", "episodes", "cameras", "staging"):
        if getattr(request, option_name) == "":
            raise UsageError(f"--{option_name} is empty; is a variable of the shell not set?")
    if request.staging is not None and not os.path.isdir(request.staging):
        raise UsageError(f"--staging {request.staging}: no such folder; make it on every machine that converts")
    if request.offset is not None:
        check_offset(request.offset)


def _check_layout(request: ConvertRequest, layout: Layout, cameras: Sequence[str]) -> None:
    """Raise UsageError for options of the other layout."""
    if layout == "pairs" and (len(cameras) > 1 or cameras == ["all"]):
        raise UsageError(f"--cameras {request.cameras}: a pair is of one camera; name one, or add --layout frames")
    if layout == "frames" and request.frames not in (None, "endpoints"):
        raise UsageError("--frames works with --layout pairs; --layout frames stores every frame")


def _check_codecs(request: ConvertRequest, layout: Layout, codecs: Set[Codec]) -> None:
    """Raise UsageError for options that do not work with the codecs."""
    video_codecs = [codec for codec in VIDEO_CODECS if codec in codecs]
    if video_codecs and layout == "pairs":
        raise UsageError(
            f"--codec {video_codecs[0]} works with --layout frames; the two frames of a pair are not consecutive"
        )
    video_options = [name for name in ("gop", "crf") if getattr(request, name) is not None]
    if video_options and not video_codecs:
        raise UsageError(f"--{video_options[0]} is for --codec h264 and av1; JPEG has --quality")
    jpeg_options = [name for name in ("quality", "subsampling") if getattr(request, name) is not None]
    if jpeg_options and "jpeg" not in codecs:
        advice = f"{video_codecs[0]} has --crf" if video_codecs else "raw is exact"
        raise UsageError(f"--{jpeg_options[0]} is for --codec jpeg; {advice}")
    _check_range("gop", request.gop, 1, MAX_GOP)
    _check_range("crf", request.crf, 0, min((MOST_CRF[codec] for codec in video_codecs), default=0))
    for codec in video_codecs:
        check_encoder(codec)


def _check_range(option_name: str, value: int | None, smallest: int, largest: int) -> None:
    if value is not None and not smallest <= value <= largest:
        raise UsageError(f"--{option_name} {value}: expected {smallest} to {largest}")


def _split_episodes(episodes: str | None) -> tuple[str, str | None]:
    """Return the splits, or ranges of them, that ``--episodes`` names, and the file of lists.

    >>> _split_episodes("train[:100]+val"), _split_episodes("lists.json"), _split_episodes("train+val:lists.json")
    (('train[:100]+val', None), ('all', 'lists.json'), ('train+val', 'lists.json'))
    """
    if episodes is None or not episodes.endswith(".json"):
        return "all" if episodes is None else episodes, None
    expression, colon, path = episodes.partition(":")
    if colon and complete_splits(expression) is not None:
        return expression, path
    if colon and "[" in expression and "/" not in expression:
        raise UsageError(f"--episodes {episodes}: a list is of complete splits, SPLIT+SPLIT:FILE.json")
    return "all", episodes


def read_episode_lists(episodes: str | None, datasets: Sequence[str]) -> dict[str, EpisodeList]:
    """Return the lists of the file that ``--episodes`` names, by dataset, empty if none; raises ArgumentError."""
    _, path = _split_episodes(episodes)
    lists = read_by_name(path, datasets, "--episodes")
    return {dataset: read_list(entry, f"--episodes {path}: {dataset}") for dataset, entry in lists.items()}


def _by_camera(
    option_text: str | None, option_name: str, layout: Layout, parse: Callable[[str], _Value], default: _Value
) -> tuple[_Value, dict[str, _Value]]:
    """Return an option as its value for all cameras, and its values by role or name."""
    if option_text is None or ":" not in option_text:
        return default if option_text is None else parse(option_text), {}
    if layout == "pairs":
        raise UsageError(f"--{option_name} {option_text!r}: values by camera work with --layout frames")
    value_by_camera: dict[str, _Value] = {}
    for camera_text in option_text.split(","):
        camera, colon, value_text = camera_text.strip().partition(":")
        if not colon:
            default = parse(camera)
        elif camera in value_by_camera:
            raise UsageError(f"--{option_name} {option_text!r:.100}: {camera} is named twice")
        else:
            value_by_camera[camera] = parse(value_text)
    return default, value_by_camera


def _parse_codec(codec_text: str) -> Codec:
    if codec_text not in CODECS:
        raise UsageError(f"--codec {codec_text!r}: {closest(codec_text, CODECS, noun='codecs')}")
    return codec_text


def parse_size(size_text: str) -> tuple[int, int] | None:
    """Return ``--image-size`` as (height, width), None for ``native``.

    >>> parse_size("256"), parse_size("180x320"), parse_size("native")
    ((256, 256), (180, 320), None)
    """
    if size_text == "native":
        return None
    size_match = _SIZE.fullmatch(size_text)
    if not size_match:
        raise UsageError(f"--image-size {size_text!r} is none of: 256, HxW (180x320), native")
    height, width = int(size_match[1]), int(size_match[2] or size_match[1])
    if not (1 <= height <= _MAX_SIDE and 1 <= width <= _MAX_SIDE):
        raise UsageError(f"--image-size {size_text!r}: sides go from 1 to {_MAX_SIDE}")
    return height, width
