"""Command line of ``pairstream export``, which writes episodes of a converted root as a LeRobot dataset."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pairstream.export.hub import push_slice
from pairstream.export.labels import label_features, label_values
from pairstream.export.lerobot import VERSION, Layout, LeRobotWriter
from pairstream.export.selection import Selection, select
from stream.base.arguments import Parser, add_cache, interrupt_on_kill, run_command
from stream.base.errors import ArgumentError
from stream.base.extras import missing
from stream.base.progress import Progress
from stream.loader.episode import StoredEpisode
from stream.storage.files import new_folder
from stream.storage.remote import CachedRoot, RemoteError, cached_root

_EPILOG = """\
The dataset is a slice to look at and to share: it has one file of each kind. For training, load the root itself.
With --images frames are the stored JPEGs, byte for byte, or JPEGs of other codecs. With --video they are encoded
again, as H.264; chunks of H.264 are copied bit for bit, unless a step of the split lacks its frame.
A step without a frame becomes a black frame, with False in observation.frames_mask. Episodes without steps or frames
are left out and counted. Labels (stream.label) are features, with False in <name>_mask where a step lacks one.
--push puts the complete slice on the Hugging Face Hub, with the token of `hf auth login` or HF_TOKEN, in place of a
slice that is there.

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
_VECTORS = {"observation.state": "state", "action": "action"}


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
    """Write episodes of a converted root as a LeRobot v3.0 dataset. After an error or interrupt nothing is left of it.

    Args:
        root: Folder that ``convert.run`` wrote, or ``pairstream.fetch`` copied.
        output: Folder to make.
        dataset: Name of a dataset of the root, or ``name:version``.
        split: Episodes in TFDS's grammar, such as ``train[:10]``.
        episodes: Numbers, ranges or ids of episodes, see ``pairstream.export.selection.select``; by default all.
        cameras: Roles or names of cameras; by default all of colour that are stored.
        fps: Steps per second of a dataset that declares none.
        video: Encode frames as H.264, instead of copying the stored JPEGs.
        repo_id: ``ORG/NAME`` to open it with.

    Returns:
        Counts and features, as a small JSON object.

    Raises:
        ArgumentError: An argument is wrong, or the root does not hold every frame of an episode.
        FormatError: A manifest, index or record is damaged.
        ModuleNotFoundError: ``video`` without PyAV.
        OSError: The output cannot be written.
    """
    output = Path(output)
    if repo_id is not None:
        _check_repository("--repo-id", repo_id)
    selection = select(root, dataset, split, episodes=episodes, cameras=cameras, fps=fps)
    if not selection.episodes:
        counts = ", ".join(f"{status} {count:,}" for status, count in selection.left_out.items())
        raise ArgumentError(
            f"dataset {dataset}: split {split!r} has no episode with frames ({counts or 'none at all'})"
        )
    layout = _layout(selection, video=video)
    with new_folder(output) as folder:
        _write(folder, selection, layout)
        selection.data.check.raise_error()
        (folder / "meta" / "source.json").write_text(json.dumps(_origin(selection), indent=1) + "\n")
    holes = "observation.frames_mask" if layout.has_mask else None
    return {
        "output": str(output),
        "repo_id": repo_id or f"local/{selection.dataset.name}",
        "episodes": len(selection.episodes),
        "steps": selection.steps,
        "fps": selection.rate,
        "features": list(layout.features),
        "frames_mask": holes,
        "left_out": dict(selection.left_out),
        "depth": [camera.name for camera in selection.dataset.fields.stored_cameras if camera.is_depth],
    }


def _check_repository(option: str, name: str) -> None:
    if not _REPOSITORY.fullmatch(name):
        raise ArgumentError(f"{option} {name!r:.120}: expected ORG/NAME")


def _layout(selection: Selection, *, video: bool) -> Layout:
    shapes = {key: camera.shape for key, camera in selection.cameras.items()}
    if video:
        from pairstream.export.video import check_size

        for key, shape in shapes.items():
            check_size(key, shape)
    spec = selection.data.spec
    vectors = {"state": spec.states[0].names, "action": spec.actions[0].names}
    robot = selection.dataset.manifest.spec.get("robot")
    return Layout(
        cameras=shapes,
        vectors={feature: vectors[name] for feature, name in _VECTORS.items() if vectors[name]},
        fps=selection.rate,
        robot=str(robot) if robot else None,
        is_video=video,
        # A hole becomes black, so it has to be encoded.
        copied=frozenset(
            key
            for key, camera in selection.cameras.items()
            if video and camera.codecs(0) == {"h264"} and not selection.has_holes
        ),
        has_mask=selection.has_holes,
        labels=label_features(selection.indexes),
    )


def _write(folder: Path, selection: Selection, layout: Layout) -> None:
    shown = Progress(selection.steps, "steps", stream=sys.stderr, label="export")
    with shown as progress, LeRobotWriter(folder, layout) as writer:
        for episode in selection.episodes:
            stored = selection.read(episode)
            frames = dict(zip(selection.cameras, stored.frames, strict=True))
            vectors = {feature: _vector(stored, _VECTORS[feature]) for feature in layout.vectors}
            tasks = stored.table.column("language").to_pylist()
            writer.add(frames, vectors, tasks, label_values(stored.table, layout.labels))
            progress.advance(episode.steps)
        writer.finish()


def _vector(stored: StoredEpisode, name: str) -> np.ndarray:
    column = stored.table.column(name).combine_chunks()
    numbers: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
    return numbers.reshape(len(column), -1)


def _origin(selection: Selection) -> dict[str, Any]:
    """Return the content of ``meta/source.json``: where each episode comes from."""
    dataset = selection.dataset
    return {
        "dataset": dataset.name,
        "version": dataset.version,
        "data": dataset.manifest.checksum[:16],
        "episodes": [
            {"episode_index": place, "split": each.split, "episode": each.number, "episode_id": each.episode_id}
            for place, each in enumerate(selection.episodes)
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parsed = _parse(arguments)
    interrupt_on_kill()
    pushed = f"{parsed.output} is complete if it exists, and {parsed.push} on the Hub may not be"
    left = "nothing was written" if parsed.push is None else pushed
    return run_command(lambda: _export(parsed), interrupted=f"interrupted; {left}")


def _export(parsed: argparse.Namespace) -> None:
    if parsed.push is not None:
        _check_repository("--push", parsed.push)
        if importlib.util.find_spec("huggingface_hub") is None:
            raise ArgumentError(missing("huggingface_hub", "hub", by="pairstream.export --push"))
    elif parsed.private:
        raise ArgumentError("--private: is for --push")
    try:
        done = export(
            cached_root(parsed.root, parsed.cache),
            parsed.output,
            dataset=parsed.dataset,
            split=parsed.split,
            episodes=parsed.episodes,
            cameras=parsed.cameras.split(",") if parsed.cameras else None,
            fps=parsed.fps,
            video=parsed.video,
            repo_id=parsed.repo_id or parsed.push,
        )
    except ModuleNotFoundError as error:
        raise ArgumentError(str(error)) from None
    if parsed.push is not None:
        done["pushed"] = _push(Path(parsed.output), parsed.push, private=parsed.private)
    if parsed.json:
        print(json.dumps(done, indent=1))
        return
    print(f"{done['episodes']:,} episodes, {done['steps']:,} steps at {done['fps']:g} per second: {done['output']}")
    if done["left_out"]:
        counts = ", ".join(f"{status} {count:,}" for status, count in done["left_out"].items())
        print(f"left out: episodes without steps or frames ({counts})")
    if done["depth"]:
        print(f"not exported: depth ({', '.join(done['depth'])})")
    if done["frames_mask"]:
        print(f"some steps lack frames: {done['frames_mask']} is False there, and the frame is black")
    if "pushed" in done:
        print(f"pushed: {done['pushed']}")
    print(f'open it with LeRobotDataset("{done["repo_id"]}", root="{done["output"]}")')


def _push(output: Path, repository: str, *, private: bool) -> str:
    try:
        return push_slice(output, repository, private=private)
    except RemoteError as error:
        again = f"hf upload {repository} {output} --repo-type dataset"
        tag = f"hf repos tag create {repository} {VERSION} --repo-type dataset"
        hint = f"the slice is complete in {output}; to push it again: {again} && {tag}"
        raise RemoteError(f"{error}; {hint}") from error


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 1000:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected steps per second, above 0 and at most 1000")
    return rate


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="pairstream export",
        description="Write episodes of a converted root as a LeRobot v3.0 dataset.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("root", metavar="ROOT", help="a converted root")
    add_cache(parser)
    parser.add_argument("--dataset", required=True, metavar="NAME", help="a dataset of the root")
    parser.add_argument("--split", default="train", help="split, as for make_loader (default: %(default)s)")
    parser.add_argument(
        "--episodes", metavar="LIST", help="numbers, ranges A:B or ids, with commas between, or a file of ids"
    )
    parser.add_argument("--format", choices=("lerobot",), default="lerobot", help="lerobot (v3.0)")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--repo-id", metavar="ORG/NAME", help="name to open it with (default: local/NAME)")
    parser.add_argument("--push", metavar="ORG/NAME", help="put the slice into this dataset of the Hugging Face Hub")
    parser.add_argument("--private", action="store_true", help="a dataset that --push makes is private")
    parser.add_argument("--cameras", metavar="A,B", help="roles or names of cameras (default: all)")
    parser.add_argument("--fps", type=_rate, metavar="N", help="steps per second of a dataset that declares none")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--images", action="store_true", help="frames as JPEGs in the parquet file (default)")
    how.add_argument(
        "--video",
        action="store_true",
        help="frames as one H.264 video a camera; stored H.264 is copied (extra video)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(arguments)
