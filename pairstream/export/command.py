"""Command line of ``pairstream export``, which writes episodes of a converted root as a LeRobot dataset."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pairstream.command import command_parser
from pairstream.export.lerobot import FRAMES_MASK, VERSION, Layout, LeRobotWriter, label_features, label_values
from pairstream.export.selection import Selection, select
from stream.base.arguments import add_cache, interrupt_on_kill, run_command
from stream.base.errors import ArgumentError
from stream.base.extras import missing
from stream.base.progress import Progress
from stream.format.index import find_episode
from stream.storage.cache_folder import cached_root
from stream.storage.files import new_folder
from stream.storage.hub import SCHEME, hub_requests
from stream.storage.remote import CachedRoot, RemoteError

_EPILOG = """\
The dataset is a slice to look at and to share: it has one file of each kind. For training, load the root itself.
With --images frames are the stored JPEGs, byte for byte, or JPEGs of other codecs. With --video frames are encoded
again, as H.264; chunks of H.264 are copied bit for bit, unless a step of the split lacks its frame.
A step without a frame becomes a black frame, with False in observation.frames_mask. Episodes without steps or frames
are left out and counted. Labels (`pairstream label`) are features, with False in <name>_mask where a step lacks one.
--push puts the complete slice on the Hugging Face Hub, with the token of `hf auth login` or HF_TOKEN, and replaces an
earlier slice.

exit codes:
  0    done
  1    records or files of the data are damaged, or the output cannot be written; nothing is left of the output
       with --push: the Hub did not take it; the output is complete
  2    a wrong name or option; nothing was written
  130  interrupted; nothing is left of the output

examples:
  pairstream export data/oxe --dataset bridge --split 'train[:10]' --output bridge_ten
  pairstream export data/oxe --dataset bridge --episodes 3,12:20 --video --output shared
  pairstream export data/oxe --dataset bridge --episodes ids.txt --repo-id me/bridge --output shared
  pairstream export data/oxe --dataset bridge --split 'train[:10]' --output bridge_ten --push me/bridge_ten
"""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def export(
    root: str | Path | CachedRoot,
    output: str | Path,
    *,
    dataset: str,
    split: str = "train",
    episodes: str | None = None,
    cameras: Sequence[str] | None = None,
    fps: float | None = None,
    video: bool = False,
    repo_id: str | None = None,
) -> dict[str, Any]:
    """Write episodes of a converted root as a LeRobot v3.0 dataset, and return counts and features as JSON.

    After an error or interrupt nothing is left of it.

    Args:
        root: Folder that ``convert.run`` wrote, or ``pairstream fetch`` copied.
        output: Folder to make.
        dataset: Name of a dataset of the root, or ``name:version``.
        split: Episodes in TFDS's grammar, such as ``train[:10]``.
        episodes: Numbers (``3``), ranges (``0:10``) or ids of episodes, with commas between, or a file of ids.
        cameras: Roles or names of cameras; by default all of colour that are stored.
        fps: Steps per second of a dataset that declares none.
        video: Encode frames as H.264, instead of copying the stored JPEGs.
        repo_id: ``ORG/NAME`` to open it with.

    Raises:
        ArgumentError: An argument is wrong, the root lacks a frame of an episode, or PyAV is missing for ``video``.
        FormatError: A manifest, index or record is damaged.
        OSError: The output cannot be written.
    """
    output = Path(output)
    if repo_id is not None:
        _check_repository("--repo-id", repo_id)
    selection = select(root, dataset, split, episodes=episodes, cameras=cameras, fps=fps)
    if not selection.episodes:
        counts = _counts(selection.left_out) or "none at all"
        raise ArgumentError(f"dataset {dataset}: split {split!r} has no episode with frames ({counts})")
    layout = _layout(selection, video=video)
    with new_folder(output) as folder:
        _write(folder, selection, layout)
        selection.data.check.raise_error()
        (folder / "meta" / "source.json").write_text(json.dumps(_origin(selection), indent=1) + "\n")
    return {
        "output": str(output),
        "repo_id": repo_id or f"local/{selection.dataset.name}",
        "episodes": len(selection.episodes),
        "steps": selection.steps,
        "fps": selection.rate,
        "features": list(layout.features),
        "frames_mask": FRAMES_MASK if layout.has_mask else None,
        "left_out": dict(selection.left_out),
        "depth": [camera.name for camera in selection.dataset.fields.stored_cameras if camera.is_depth],
    }


def _counts(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{status} {count:,}" for status, count in left_out.items())


def _check_repository(option: str, repository: str) -> None:
    if not _REPOSITORY.fullmatch(repository):
        raise ArgumentError(f"{option} {repository!r:.120}: expected ORG/NAME")


def _layout(selection: Selection, *, video: bool) -> Layout:
    frame_shapes = {camera_key: camera.shape for camera_key, camera in selection.cameras.items()}
    if video:
        from pairstream.export.video import check_size

        for camera_key, shape in frame_shapes.items():
            check_size(camera_key, shape)
    sample_spec, robot_name = selection.data.spec, selection.dataset.manifest.spec.get("robot")
    vectors = {"observation.state": sample_spec.states[0].names, "action": sample_spec.actions[0].names}
    # A missing frame becomes black, so a video with one is encoded again.
    can_copy = video and not selection.has_holes
    used_splits = {episode.split for episode in selection.episodes}
    return Layout(
        cameras=frame_shapes,
        vectors={feature: names for feature, names in vectors.items() if names},
        fps=selection.rate,
        robot=str(robot_name) if robot_name else None,
        is_video=video,
        copied=frozenset(key for key, camera in selection.cameras.items() if can_copy and camera.codecs(0) == {"h264"}),
        has_mask=selection.has_holes,
        labels=label_features([index for index in selection.data.sample_index.splits if index.split in used_splits]),
    )


def _write(folder: Path, selection: Selection, layout: Layout) -> None:
    indexes = {index.split: index for index in selection.data.sample_index.splits}
    progress_bar = Progress(selection.steps, "steps", stream=sys.stderr, label="export")
    with progress_bar as progress, contextlib.closing(LeRobotWriter(folder, layout)) as writer:
        for episode in selection.episodes:
            index = indexes[episode.split]
            rows = np.array(find_episode(selection.dataset, index, episode.number).steps)
            vectors = {feature: index.steps.take(feature.rpartition(".")[2], rows) for feature in layout.vectors}
            stored_frames = dict(zip(selection.cameras, selection.read(episode).frames, strict=True))
            instructions = index.steps.take_texts("language", rows)
            writer.add(stored_frames, vectors, instructions, label_values(index, rows, layout.labels))
            progress.advance(episode.steps)
        writer.finish()


def _origin(selection: Selection) -> dict[str, Any]:
    """Return the content of ``meta/source.json``: the origin of each episode."""
    dataset = selection.dataset
    return {
        "dataset": dataset.name,
        "version": dataset.version,
        "data": dataset.manifest.checksum[:16],
        "episodes": [
            {"episode_index": index, "split": chosen.split, "episode": chosen.number, "episode_id": chosen.episode_id}
            for index, chosen in enumerate(selection.episodes)
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    interrupt_on_kill()
    pushed_text = f"{options.output} is complete if it exists, and {options.push} on the Hub may not be"
    remaining_text = "nothing was written" if options.push is None else pushed_text
    return run_command(lambda: _export(options), interrupted=f"interrupted; {remaining_text}")


def _export(options: argparse.Namespace) -> None:
    if options.push is not None:
        _check_repository("--push", options.push)
        if importlib.util.find_spec("huggingface_hub") is None:
            raise ArgumentError(missing("huggingface_hub", "hub", by="pairstream export --push"))
    elif options.private:
        raise ArgumentError("--private: is for --push")
    summary = export(
        cached_root(options.root, options.cache),
        options.output,
        dataset=options.dataset,
        split=options.split,
        episodes=options.episodes,
        cameras=options.cameras.split(",") if options.cameras else None,
        fps=options.fps,
        video=options.video,
        repo_id=options.repo_id or options.push,
    )
    if options.push is not None:
        summary["pushed"] = _push(Path(options.output), options.push, private=options.private)
    if options.json:
        print(json.dumps(summary, indent=1))
        return
    steps = f"{summary['steps']:,} steps at {summary['fps']:g} per second"
    print(f"{summary['episodes']:,} episodes, {steps}: {summary['output']}")
    if summary["left_out"]:
        print(f"left out: episodes without steps or frames ({_counts(summary['left_out'])})")
    if summary["depth"]:
        print(f"not exported: depth ({', '.join(summary['depth'])})")
    if summary["frames_mask"]:
        print(f"some steps lack frames: {summary['frames_mask']} is False there, and the frame is black")
    if "pushed" in summary:
        print(f"pushed: {summary['pushed']}")
    print(f'open it with LeRobotDataset("{summary["repo_id"]}", root="{summary["output"]}")')


def _push(output: Path, repository: str, *, private: bool) -> str:
    """Put a slice into a dataset of the Hub in place of an earlier one, and return its address."""
    arguments: dict[str, Any] = {"repo_id": repository, "repo_type": "dataset"}
    try:
        with hub_requests(f"{SCHEME}{repository}", done="written"):
            from huggingface_hub import HfApi
            from huggingface_hub.errors import RevisionNotFoundError

            hub_api = HfApi()
            address = hub_api.create_repo(**arguments, private=private or None, exist_ok=True)
            message, patterns = "Slice of pairstream", ["data/*", "meta/*", "videos/*"]
            hub_api.upload_folder(**arguments, folder_path=output, commit_message=message, delete_patterns=patterns)
            # LeRobot looks for datasets of a format by its tag.
            with contextlib.suppress(RevisionNotFoundError):
                hub_api.delete_tag(**arguments, tag=VERSION)
            hub_api.create_tag(**arguments, tag=VERSION)
    except RemoteError as error:
        upload_command = f"hf upload {repository} {output} --repo-type dataset"
        tag_command = f"hf repos tag create {repository} {VERSION} --repo-type dataset"
        hint = f"the slice is complete in {output}; to push it again: {upload_command} && {tag_command}"
        raise RemoteError(f"{error}; {hint}") from error
    return str(address)


def _rate(option_text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (rate := float(option_text)) <= 1000:
            return rate
    raise argparse.ArgumentTypeError(f"found {option_text!r}, expected steps per second, above 0 and at most 1000")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser(
        "export", description="Write episodes of a converted root as a LeRobot v3.0 dataset.", epilog=_EPILOG
    )
    parser.add_argument("root", metavar="ROOT", help="a converted root")
    add_cache(parser)
    parser.add_argument("--dataset", required=True, metavar="NAME", help="a dataset of the root")
    parser.add_argument("--split", default="train", help="split, as for make_loader (default: %(default)s)")
    parser.add_argument("--episodes", metavar="LIST", help="numbers, ranges A:B or ids, with commas; or a file of ids")
    parser.add_argument("--format", choices=("lerobot",), default="lerobot", help="lerobot (v3.0)")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--repo-id", metavar="ORG/NAME", help="name to open it with (default: local/NAME)")
    parser.add_argument("--push", metavar="ORG/NAME", help="put the slice into this dataset of the Hugging Face Hub")
    parser.add_argument("--private", action="store_true", help="a dataset that --push makes is private")
    parser.add_argument("--cameras", metavar="A,B", help="roles or names of cameras (default: all)")
    parser.add_argument("--fps", type=_rate, metavar="N", help="steps per second of a dataset that declares none")
    frame_format = parser.add_mutually_exclusive_group()
    frame_format.add_argument("--images", action="store_true", help="frames as JPEGs in the parquet file (default)")
    frame_format.add_argument("--video", action="store_true", help="an H.264 video of each camera (extra video)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(arguments)
