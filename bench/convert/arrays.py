"""``python -m bench.convert.arrays``: conversion of HDF5 beside reading and encoding the same frames.

Writes a file of robomimic with one camera of 480x640 and one chunk a frame, or one chunk an episode, then in turns
converts it with ``convert_shard`` (ours: resizing, encoding, records, index, hashes), and reads each episode of it with
h5py, resizes and encodes with plain calls of OpenCV (bare). ``ratio`` is bare / ours in seconds, ``CPU ratio`` the same
in CPU time of the processes; ``worker MB`` is the largest resident set of ours.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import h5py
import numpy as np

from bench.convert.processes import JPEG, summarise, timed, to_table
from convert.journal.journal import Journal
from convert.plan import ConvertConfig, plan_conversion
from convert.registry.registry import load_registry
from convert.sample.scene import Scene
from convert.shard.images import FramePolicy
from convert.source.kinds import find_source
from convert.tasks.shard import convert_shard
from stream.base.arguments import Parser, whole

_HEIGHT, _WIDTH = 480, 640
_CAMERA = "obs/front_image"


def make_file(path: Path, *, chunk: str, compression: str | None, episodes: int, steps: int) -> None:
    """Write a file; its episodes repeat one."""
    scene = Scene(np.random.default_rng(2))
    frames = np.stack([scene.colour(step, "observation/image", height=_HEIGHT, width=_WIDTH) for step in range(steps)])
    chunks = (steps if chunk == "episode" else 1, _HEIGHT, _WIDTH, 3)
    with h5py.File(path, "w") as file:
        for number in range(episodes):
            demo = file.create_group(f"data/demo_{number}")
            demo.create_dataset(_CAMERA, data=frames, chunks=chunks, compression=compression)
            demo.create_dataset("actions", data=np.zeros((steps, 7)))


class _Convert:
    def __init__(self, path: Path, output: Path, *, size: int) -> None:
        source = find_source(f"robomimic:{path}", [], {})
        (selected,) = load_registry().resolve(f"robomimic:{path}", lambda *_: source.entry)
        options = ConvertConfig(layout="frames", policy=FramePolicy(size=(size, size), quality=95))
        self._conversion = plan_conversion(selected, source, options, output_folder=str(output))
        Journal(str(output)).begin(dict(self._conversion.parameters))

    def __call__(self, share: slice) -> None:
        jobs = [piece for job in self._conversion.jobs for piece in job.pieces()]
        for job in jobs[share]:
            status = convert_shard(job, self._conversion.plan)
            assert status is not None
            assert not status.entry.left_out


class _Transcode:
    def __init__(self, path: Path, *, size: int, chunk: str) -> None:
        self._path = path
        self._size = size
        self._chunk = chunk

    def __call__(self, share: slice) -> None:
        with h5py.File(self._path) as file:
            for name in sorted(file["data"])[share]:
                stored = file[f"data/{name}/{_CAMERA}"]
                for pixels in stored[:] if self._chunk == "episode" else (stored[step] for step in range(len(stored))):
                    small = cv2.resize(pixels, (self._size, self._size), interpolation=cv2.INTER_AREA)
                    cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), JPEG)[1].tobytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog="python -m bench.convert.arrays", description="Measure the conversion of HDF5.")
    add = parser.add_argument
    add("--chunk", choices=("frame", "episode"), default="frame", help="what a chunk holds (default: frame)")
    add("--compression", choices=("gzip", "none"), default="gzip", help="of the chunks (default: gzip)")
    add("--size", type=whole(1), default=256, help="side of the stored frames (default: 256)")
    add("--steps", type=whole(10), default=300, help="steps of an episode, 0.92 MB each (default: 300)")
    add("--episodes", type=whole(1), default=16, help="episodes; 16 of 300 steps are 4.4 GB (default: 16)")
    add("--num-workers", type=whole(1), default=2, help="processes of both (default: 2)")
    add("--repeat", type=whole(1), default=3, help="measurements of each (default: 3)")
    add("--json", action="store_true", help="print all figures instead of a table")
    given = parser.parse_args(arguments)
    compression = None if given.compression == "none" else given.compression
    runs = []
    with tempfile.TemporaryDirectory(prefix="bench-convert-") as folder:
        path = Path(folder, "source.hdf5")
        make_file(path, chunk=given.chunk, compression=compression, episodes=given.episodes, steps=given.steps)
        for number in range(given.repeat):
            output = Path(folder, "out", f"{number}")
            works: dict[str, Callable[[slice], None]] = {
                "ours": _Convert(path, output, size=given.size),
                "bare": _Transcode(path, size=given.size, chunk=given.chunk),
            }
            order = sorted(works, reverse=number % 2 == 0)
            library = "convert.source.arrays.hdf5"
            runs.append({name: timed(works[name], workers=given.num_workers, imports=library) for name in order})
            shutil.rmtree(output)
    frames = given.steps * given.episodes
    result = {"parameters": vars(given), **summarise(runs, frames=frames)}
    print(json.dumps(result, indent=1) if given.json else to_table(result, {"a chunk": given.chunk}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
