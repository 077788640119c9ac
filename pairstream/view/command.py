"""Command line of ``pairstream view``: an episode in Rerun, shown or saved."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from pairstream.command import command_parser, needs_extra
from pairstream.view.tracks import Tracks, open_tracks
from pairstream.view.window import find_window, open_run
from stream.base.arguments import add_cache, run_command, whole_number
from stream.base.errors import ArgumentError
from stream.cache.in_place import open_catalog
from stream.format.index import open_index
from stream.storage.cache_folder import cached_root

_EPILOG = """\
The recording has the stored bytes of all cameras, action and state as stored and in canonical spaces, the instruction,
and every other column, by step and by seconds.

exit codes:
  0    shown or saved
  1    files of the data are damaged
  2    a wrong option, or no such episode
  130  interrupted

examples:
  pairstream view build/demo/frames bridge 3
  pairstream view build/demo/frames droid 0 --save droid.rrd
  pairstream view --loader run/loader.json --step 51234 --row 7
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    return run_command(lambda: _view(options), interrupted="error: interrupted")


def _view(options: argparse.Namespace) -> None:
    with needs_extra("view", by="pairstream view"):
        from pairstream.view.recording import save, spawn
    window = None
    if options.loader:
        rank_plan, _ = open_run(options.loader, root=options.root, cache=options.cache, rank=options.rank)
        tracks, window = find_window(rank_plan, options.step, options.row or 0)
    else:
        tracks = _of_root(options)
    if options.save is None:
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise ArgumentError(
                "no display for Rerun's window; give --save FILE.rrd, and open the file with `rerun FILE.rrd` where "
                "there is one, or look at the episode in a browser with `pairstream browse`"
            )
        spawn(tracks, window)
        return
    faults = save(tracks, options.save, window)
    num_frames = sum(len(camera.steps) for camera in tracks.cameras)
    print(f"{tracks.title}: {tracks.steps} steps, {num_frames - len(faults)} frames of {len(tracks.cameras)} cameras")
    if window is not None:
        print(f"{window.text}: {window.ref.language}")
    for fault in faults:
        print(f"left out: {fault}")
    print(f"{options.save}: open it with `rerun {options.save}`")


def _of_root(options: argparse.Namespace) -> Tracks:
    catalog = open_catalog(cached_root(options.root, options.cache, has_members=False))
    catalog.check_converted()
    dataset = catalog.open(options.dataset)
    split_names = sorted(dataset.manifest.splits)
    split_name = options.split or (split_names[0] if len(split_names) == 1 else "train")
    if split_name not in split_names:
        raise ArgumentError(f"dataset {dataset.name}: no split {split_name!r}; give --split {' or '.join(split_names)}")
    return open_tracks(dataset, open_index(dataset, split_name), options.episode)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser(
        "view",
        usage="%(prog)s ROOT DATASET EPISODE [options]\n       %(prog)s --loader FILE --step N [--row R] [options]",
        description="Show an episode in Rerun: cameras, action, state, and every other column.",
        epilog=_EPILOG,
    )
    parser.add_argument("place", nargs="*", metavar="ROOT DATASET EPISODE", help="the episode, counted from 0")
    parser.add_argument("--split", help="split of the episode; default: the only one, or train")
    parser.add_argument("--save", type=Path, metavar="FILE.rrd", help="write a recording instead of showing it")
    parser.add_argument("--loader", type=Path, metavar="FILE", help="a run's loader.json: show a row's episode")
    parser.add_argument("--step", type=whole_number(0), metavar="N", help="with --loader: step of the run, from 0")
    parser.add_argument("--row", type=whole_number(0), metavar="R", help="with --loader: row of the batch (default: 0)")
    parser.add_argument("--rank", type=int, metavar="R", help="with --loader: rank of the run (default: the file's)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="with --loader: root, if the data were moved")
    add_cache(parser)
    options = parser.parse_args(arguments)
    if options.loader is not None:
        if options.place or options.split or options.step is None:
            parser.error("--loader needs --step, and finds dataset, split and episode itself")
        return options
    of_runs = (options.step, options.row, options.root, options.rank)
    if len(options.place) != 3 or any(value is not None for value in of_runs):
        parser.error("give ROOT DATASET EPISODE, or --loader FILE --step N")
    options.root, options.dataset, episode = options.place
    try:
        options.episode = whole_number(0)(episode)
    except argparse.ArgumentTypeError as error:
        parser.error(f"EPISODE: {error}")
    return options
