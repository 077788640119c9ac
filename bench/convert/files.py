"""``python -m bench.convert.files``: conversion of LeRobot videos or HDF5, compared with bare codec work.

Writes 480x640 frames as the videos of a LeRobot v3 dataset (``--kind lerobot``) or as robomimic's HDF5 with one chunk a
frame or an episode (``--kind hdf5``). Then in turns it converts them with ``convert_shard`` (ours: reading, resizing,
encoding, records, index, hashes), and reads, resizes and encodes the same frames with plain calls of PyAV, h5py and
OpenCV (bare). Both run in as many processes, which start together with everything imported. ``ratio`` is bare / ours in
seconds, ``CPU ratio`` the same in CPU time of the processes; ``worker MB`` is the largest resident set of ours.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import av
import cv2
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.convert.command import JPEG_OPTIONS, QUALITY
from bench.convert.source import set_up_opencv
from bench.measure.child import Team, Turn
from bench.measure.command import Command, Output, Result, work_folder
from bench.measure.options import one_of, option
from bench.measure.tables import Table
from convert.jobs import ShardJob
from convert.plan import Conversion, ConvertConfig, plan_conversion
from convert.registry.registry import load_registry
from convert.sample.scene import Scene
from convert.shard.images import FramePolicy
from convert.shard.video import usual_scheduling
from convert.source.kinds import find_source
from convert.tasks.shard import convert_shard
from stream.base.arguments import whole_number

_HEIGHT, _WIDTH, _FPS = 480, 640, 30
_CAMERA = "obs/front_image"
# As LeRobot's recorder encodes: a key frame every second frame.
_ENCODERS = {
    "av1": ("libsvtav1", {"crf": "30", "g": "2"}),
    "h264": ("libx264", {"crf": "23", "g": "2"}),
    "hevc": ("libx265", {"crf": "26", "g": "2", "x265-params": "log-level=none"}),
}
_READERS = {"lerobot": "convert.source.lerobot.video", "hdf5": "convert.source.arrays.opening"}
"""Module that each kind of source imports when it reads."""


@dataclass(frozen=True, kw_only=True)
class FilesOptions(Output):
    """Options of the command."""

    kind: str = option("lerobot", one_of(tuple(_READERS)), "lerobot or hdf5")
    codec: str = option("av1", one_of(tuple(_ENCODERS)), "codec of the videos: av1, h264 or hevc")
    cameras: int = option(1, whole_number(1), "cameras of the LeRobot dataset")
    chunk: str = option("frame", one_of(("frame", "episode")), "content of a chunk of HDF5: frame or episode")
    compression: str = option("gzip", one_of(("gzip", "none")), "compression of the chunks: gzip or none")
    size: int = option(256, whole_number(0), "side of the stored frames, 0 for 480x640")
    episodes: int = option(8, whole_number(1), "episodes, each a video file of each camera")
    steps: int = option(300, whole_number(10), "steps of an episode")
    num_workers: int = option(2, whole_number(1), "processes of both")
    repeat: int = option(3, whole_number(1), "measurements of each")


def make_hdf5(path: Path, options: FilesOptions) -> None:
    """Write a file whose episodes repeat one."""
    scene = Scene(np.random.default_rng(2))
    pictures = [scene.colour(step, "image", height=_HEIGHT, width=_WIDTH) for step in range(options.steps)]
    chunks = (options.steps if options.chunk == "episode" else 1, _HEIGHT, _WIDTH, 3)
    compression = None if options.compression == "none" else options.compression
    with h5py.File(path, "w") as file:
        for number in range(options.episodes):
            demo = file.create_group(f"data/demo_{number}")
            demo.create_dataset(_CAMERA, data=np.stack(pictures), chunks=chunks, compression=compression)
            demo.create_dataset("actions", data=np.zeros((options.steps, 7)))


def make_lerobot(folder: Path, options: FilesOptions) -> None:
    """Write a dataset with a video file of each camera for each episode; all repeat one video."""
    cameras = [f"observation.images.camera{number}" for number in range(options.cameras)]
    for name in ("meta/episodes/chunk-000", "data/chunk-000", *(f"videos/{camera}/chunk-000" for camera in cameras)):
        (folder / name).mkdir(parents=True)
    video, steps = folder / "video.mp4", options.steps
    _write_video(video, options.codec, steps)
    episodes: list[dict[str, Any]] = []
    for number in range(options.episodes):
        location = {"chunk_index": 0, "file_index": number}
        row: dict[str, Any] = {"episode_index": number, "tasks": ["move"], "length": steps}
        row |= {f"data/{key}": value for key, value in location.items()}
        for camera in cameras:
            shutil.copyfile(video, folder / f"videos/{camera}/chunk-000/file-{number:03d}.mp4")
            row |= {f"videos/{camera}/{key}": value for key, value in location.items()}
            row[f"videos/{camera}/from_timestamp"] = 0.0
        episodes.append(row)
        columns = {
            "action": pa.array(np.zeros((steps, 7), np.float32).tolist(), pa.list_(pa.float32(), 7)),
            "timestamp": pa.array(np.arange(steps, dtype=np.float32) / _FPS),
            "episode_index": pa.array(np.full(steps, number)),
            "task_index": pa.array(np.zeros(steps, np.int64)),
        }
        pq.write_table(pa.table(columns), folder / f"data/chunk-000/file-{number:03d}.parquet")
    video.unlink()
    pq.write_table(pa.Table.from_pylist(episodes), folder / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.table({"task_index": [0], "task": ["move"]}), folder / "meta/tasks.parquet")
    features = {name: {"dtype": "int64", "shape": [1]} for name in ("episode_index", "task_index")}
    features |= {"action": {"dtype": "float32", "shape": [7]}, "timestamp": {"dtype": "float32", "shape": [1]}}
    picture = {"dtype": "video", "shape": [_HEIGHT, _WIDTH, 3], "info": {"video.codec": options.codec}}
    info = {
        "codebase_version": "v3.0",
        "fps": _FPS,
        "total_episodes": options.episodes,
        "total_frames": options.episodes * steps,
        "splits": {"train": f"0:{options.episodes}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features | dict.fromkeys(cameras, picture),
    }
    (folder / "meta/info.json").write_text(json.dumps(info))


def _write_video(path: Path, codec: str, steps: int) -> None:
    encoder, encoder_options = _ENCODERS[codec]
    scene = Scene(np.random.default_rng(2))
    with usual_scheduling(), av.open(str(path), "w") as container:
        stream: Any = container.add_stream(encoder, rate=_FPS, options=encoder_options)
        stream.width, stream.height, stream.pix_fmt = _WIDTH, _HEIGHT, "yuv420p"
        for step in range(steps):
            pixels = np.ascontiguousarray(scene.colour(step, "image", height=_HEIGHT, width=_WIDTH))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def plan(source_path: Path, output: Path, options: FilesOptions) -> Conversion:
    """Plan a conversion of all cameras to JPEG."""
    name = f"{'lerobot' if options.kind == 'lerobot' else 'robomimic'}:{source_path}"
    source = find_source(name, [], {})
    (selected,) = load_registry().resolve(name, lambda *_: source.entry)
    size = (options.size, options.size) if options.size else None
    policy = FramePolicy(size=size, quality=QUALITY)
    config = ConvertConfig(layout="frames", cameras=("all",), policy=policy)
    return plan_conversion(selected, source, config, output_folder=str(output))


def _convert(jobs: Sequence[ShardJob], conversion: Conversion) -> int:
    statuses = [convert_shard(job, conversion.plan) for job in jobs]
    assert all(status is not None and not status.entry.left_out for status in statuses)
    return len(jobs)


def _transcode(names: Sequence[str], path: Path, options: FilesOptions) -> int:
    """Read, resize and encode some episodes of an HDF5 file, or some video files."""
    for name in names:
        for pixels in _read(name, path, options):
            if size := options.size:
                pixels = cv2.resize(pixels, (size, size), interpolation=cv2.INTER_AREA)
            cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), JPEG_OPTIONS)[1].tobytes()
    return len(names)


def _read(name: str, path: Path, options: FilesOptions) -> Iterator[Any]:
    if options.kind == "hdf5":
        with h5py.File(path) as file:
            stored = file[f"data/{name}/{_CAMERA}"]
            yield from stored[:] if options.chunk == "episode" else (stored[step] for step in range(len(stored)))
        return
    with av.open(name) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def _import(module: str) -> int:
    set_up_opencv()
    import_module(module)
    return 1


def _run(work: Any, items: Sequence[Any], options: FilesOptions) -> Turn:
    with Team(options.num_workers) as team:
        team.run(_import, [_READERS[options.kind]] * options.num_workers)
        return team.run(work, [items[number :: options.num_workers] for number in range(options.num_workers)])


def _work(options: FilesOptions) -> Iterator[dict[str, Any]]:
    runs: list[dict[str, Turn]] = []
    with work_folder("bench-convert", None) as folder:
        source = folder / "source"
        if options.kind == "hdf5":
            make_hdf5(source := folder / "source.hdf5", options)
            names = [f"demo_{number}" for number in range(options.episodes)]
        else:
            make_lerobot(source, options)
            names = sorted(map(str, source.glob("videos/*/*/*.mp4")), key=lambda name: Path(name).name)
        for number in range(options.repeat):
            conversion = plan(source, folder / "output" / str(number), options)
            conversion.journal.begin(conversion.journal_parameters)
            jobs = [piece for job in conversion.jobs for piece in job.pieces()]
            works: dict[str, tuple[Any, Sequence[Any]]] = {
                "ours": (partial(_convert, conversion=conversion), jobs),
                "bare": (partial(_transcode, path=source, options=options), names),
            }
            order = sorted(works, reverse=number % 2 == 0)
            runs.append({name: _run(*works[name], options) for name in order})
    frames = options.steps * options.episodes * (options.cameras if options.kind == "lerobot" else 1)
    yield {
        "frames": frames,
        "frames_per_s": {name: frames / median(run[name].seconds for run in runs) for name in ("ours", "bare")},
        "ratio": median(run["bare"].seconds / run["ours"].seconds for run in runs),
        "cpu_ratio": median(run["bare"].cpu_seconds / run["ours"].cpu_seconds for run in runs),
        "peak_worker_bytes": max(run["ours"].peak_bytes for run in runs),
    }


def _table(result: Result) -> str:
    rates, parameters = result["frames_per_s"], result["parameters"]
    row = {
        "source": f"{parameters['kind']} {parameters['codec' if parameters['kind'] == 'lerobot' else 'chunk']}",
        "frames": result["frames"],
        "ours frames/s": round(rates["ours"]),
        "bare frames/s": round(rates["bare"]),
        "ratio": f"{result['ratio']:.3f}",
        "CPU ratio": f"{result['cpu_ratio']:.3f}",
        "worker MB": round(result["peak_worker_bytes"] / 1e6),
    }
    return Table(list(row), [list(row.values())], []).text()


COMMAND = Command(
    name="convert.files",
    about="Measure the conversion of LeRobot videos or HDF5.",
    options=FilesOptions,
    work=_work,
    show=_table,
    libraries=("av", "h5py", "numpy", "opencv-python-headless", "pyarrow"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
