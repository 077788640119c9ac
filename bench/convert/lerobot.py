"""``python -m bench.convert.lerobot``: conversion of videos beside decoding and encoding the same frames.

Writes a LeRobot v3 dataset whose cameras are 480x640 videos, then in turns converts its units with ``convert_shard``
(ours: decoding, resizing, encoding, records, index, hashes), and decodes the same files with PyAV, resizes and encodes
with plain calls of OpenCV (bare). Both run in as many processes, which start working together and have imported
everything before. ``ratio`` is bare / ours in seconds, ``CPU ratio`` the same in CPU time of the processes; ``worker
MB`` is the largest resident set of ours.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.convert.processes import JPEG, summarise, timed, to_table
from convert.journal.journal import Journal
from convert.plan import Conversion, ConvertConfig, plan_conversion
from convert.registry.registry import load_registry
from convert.sample.scene import Scene
from convert.shard.images import FramePolicy
from convert.source.lerobot.dataset import find
from convert.tasks.shard import convert_shard
from stream.base.arguments import Parser, whole

_HEIGHT, _WIDTH, _FPS = 480, 640, 30
_QUALITY = JPEG[1]
# As LeRobot's recorder encodes: a key frame every second frame.
_ENCODERS = {
    "av1": ("libsvtav1", {"crf": "30", "g": "2"}),
    "h264": ("libx264", {"crf": "23", "g": "2"}),
    "hevc": ("libx265", {"crf": "26", "g": "2", "x265-params": "log-level=none"}),
}


def make_dataset(folder: Path, *, codec: str, cameras: int, units: int, frames: int) -> None:
    """Write a dataset of ``units`` video files a camera, each one episode; they repeat one video."""
    keys = [f"observation.images.camera{number}" for number in range(cameras)]
    video = folder / "video.mp4"
    folder.mkdir(parents=True)
    name, options = _ENCODERS[codec]
    scene = Scene(np.random.default_rng(2))
    with av.open(str(video), "w") as out:
        stream: Any = out.add_stream(name, rate=_FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = _WIDTH, _HEIGHT, "yuv420p"
        for step in range(frames):
            pixels = scene.colour(step, "observation/image", height=_HEIGHT, width=_WIDTH)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        out.mux(stream.encode())
    episodes: list[dict[str, Any]] = []
    for unit in range(units):
        place = {"chunk_index": 0, "file_index": unit}
        row: dict[str, Any] = {"episode_index": unit, "tasks": ["move"], "length": frames}
        row |= {f"data/{key}": value for key, value in place.items()}
        for key in keys:
            path = folder / f"videos/{key}/chunk-000/file-{unit:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(video, path)
            row |= {f"videos/{key}/{name}": value for name, value in place.items()}
            row[f"videos/{key}/from_timestamp"] = 0.0
        episodes.append(row)
        data = folder / f"data/chunk-000/file-{unit:03d}.parquet"
        data.parent.mkdir(parents=True, exist_ok=True)
        columns = {
            "action": pa.array(np.zeros((frames, 7), np.float32).tolist(), pa.list_(pa.float32(), 7)),
            "timestamp": pa.array(np.arange(frames, dtype=np.float32) / _FPS),
            "episode_index": pa.array(np.full(frames, unit)),
            "task_index": pa.array(np.zeros(frames, np.int64)),
        }
        pq.write_table(pa.table(columns), data)
    video.unlink()
    listed = folder / "meta/episodes/chunk-000/file-000.parquet"
    listed.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(episodes), listed)
    pq.write_table(pa.table({"task_index": [0], "task": ["move"]}), folder / "meta/tasks.parquet")
    picture = {"dtype": "video", "shape": [_HEIGHT, _WIDTH, 3], "info": {"video.codec": codec}}
    number = {"dtype": "int64", "shape": [1]}
    info = {
        "codebase_version": "v3.0",
        "fps": _FPS,
        "total_episodes": units,
        "total_frames": units * frames,
        "splits": {"train": f"0:{units}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            "action": {"dtype": "float32", "shape": [7]},
            "timestamp": {"dtype": "float32", "shape": [1]},
            "episode_index": number,
            "task_index": number,
            **dict.fromkeys(keys, picture),
        },
    }
    (folder / "meta/info.json").write_text(json.dumps(info))


def plan(folder: Path, output: Path, *, size: int | None) -> Conversion:
    """Plan a conversion of all cameras to JPEG of ``size``, None for the size of the videos."""
    source = find(str(folder), [], {})
    (selected,) = load_registry().resolve(f"lerobot:{folder}", lambda *_: source.entry)
    policy = FramePolicy(size=(size, size) if size else None, quality=_QUALITY)
    options = ConvertConfig(layout="frames", cameras=("all",), policy=policy)
    return plan_conversion(selected, source, options, output_folder=str(output))


def convert(conversion: Conversion, share: slice) -> None:
    """Convert some units."""
    for job in conversion.jobs[share]:
        status = convert_shard(job, conversion.plan)
        assert status is not None
        assert not status.entry.left_out


def transcode(files: Sequence[Path], share: slice, *, size: int | None) -> None:
    """Decode, resize and encode all frames of some files."""
    for path in files[share]:
        with av.open(str(path)) as container:
            container.streams.video[0].codec_context.thread_count = 1
            for frame in container.decode(video=0):
                pixels: Any = frame.to_ndarray(format="rgb24")
                if size:
                    pixels = cv2.resize(pixels, (size, size), interpolation=cv2.INTER_AREA)
                cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), JPEG)[1].tobytes()


class _Convert:
    def __init__(self, folder: Path, output: Path, *, size: int | None) -> None:
        self._conversion = plan(folder, output, size=size)
        Journal(str(output)).begin(dict(self._conversion.parameters))

    def __call__(self, share: slice) -> None:
        convert(self._conversion, share)


class _Transcode:
    def __init__(self, folder: Path, *, size: int | None) -> None:
        self._files = sorted(folder.glob("videos/*/*/*.mp4"), key=lambda path: path.name)
        self._size = size

    def __call__(self, share: slice) -> None:
        transcode(self._files, share, size=self._size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog="python -m bench.convert.lerobot", description="Measure the conversion of LeRobot videos.")
    add = parser.add_argument
    add("--codec", choices=_ENCODERS, default="av1", help="codec of the videos (default: av1)")
    add("--cameras", type=whole(1), default=1, help="cameras (default: 1)")
    add("--size", type=whole(0), default=256, help="side of the stored frames, 0 for 480x640 (default: 256)")
    add("--frames", type=whole(10), default=300, help="frames of each video file (default: 300)")
    add("--units", type=whole(1), default=8, help="video files of each camera (default: 8)")
    add("--num-workers", type=whole(1), default=2, help="processes of both (default: 2)")
    add("--repeat", type=whole(1), default=3, help="measurements of each (default: 3)")
    add("--json", action="store_true", help="print all figures instead of a table")
    given = parser.parse_args(arguments)
    size, runs = given.size or None, []
    with tempfile.TemporaryDirectory(prefix="bench-convert-") as folder:
        source = Path(folder, "source")
        make_dataset(source, codec=given.codec, cameras=given.cameras, units=given.units, frames=given.frames)
        for number in range(given.repeat):
            output = Path(folder, "out", f"{number}")
            works: dict[str, Callable[[slice], None]] = {
                "ours": _Convert(source, output, size=size),
                "bare": _Transcode(source, size=size),
            }
            order = sorted(works, reverse=number % 2 == 0)
            video = "convert.source.lerobot.video"
            runs.append({name: timed(works[name], workers=given.num_workers, imports=video) for name in order})
            shutil.rmtree(output)
    frames = given.frames * given.units * given.cameras
    result = {"parameters": vars(given), **summarise(runs, frames=frames)}
    print(json.dumps(result, indent=1) if given.json else to_table(result, {"codec": given.codec}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
