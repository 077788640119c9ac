"""``python -m bench.windows``: the same windows of frames and actions in loaders that store each frame once.

A dataset of a root in the layout ``frames`` is exported with ``pairstream export`` as a LeRobot dataset, its frames as
the stored JPEGs. Ours reads the root. LeRobotDataset reads the export with ``delta_timestamps``, and its frames as the
AV1 video that LeRobot makes of them; LanceDBDataset of lerobot-lancedb reads tables of that video, all in the
environment that ``python -m bench.peers --install lerobot`` makes. Plain Grain and LMDB read copies with a record
for each frame, and decode with simplejpeg as ours does. The samples are a window around every step: ``--window``
frames up to it and ``--horizon`` actions from it on; beyond an episode the closest step is repeated and masked.

Before anything is measured every sample of every loader is compared: pixels (but for those of video), actions and both
masks have to be equal. The columns are those of `bench.peers`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import simplejpeg

from bench.loader.parameters import Parameters
from bench.measure.options import known, option, several
from bench.measure.points import Point
from bench.peers.comparison import SAMPLES, ComparisonOptions, comparison, make_points
from bench.peers.list import PEERS, VENVS, Peer
from bench.peers.loaders.windows import LEROBOT
from bench.peers.protocol import pixel_hash, window_hash
from pairstream.export.command import export
from pairstream.export.selection import Selection, select
from stream.base.arguments import whole
from stream.base.errors import ArgumentError

_LOADERS = "bench.peers.loaders"
_TORCH = "delta_timestamps, torch DataLoader"
_ABOUT = {
    "ours": ("ours", "stores:Ours", "stream.make_loader over the layout frames"),
    "lerobot": ("lerobot", "windows:Lerobot", f"LeRobotDataset v3, JPEGs in parquet, {_TORCH}"),
    "lerobot-video": ("lerobot", "windows:LerobotVideo", f"LeRobotDataset v3, its own AV1 video, torchcodec, {_TORCH}"),
    "lerobot-lancedb": ("lerobot", "windows:LerobotLance", f"LanceDBDataset, the same video, torchcodec, {_TORCH}"),
    "grain": ("grain", "windows:Grain", "ArrayRecord, a record a frame, grain.MapDataset of windows, mp_prefetch"),
    "lmdb": ("lmdb", "windows:Lmdb", "LMDB, a record a frame, torch DataLoader"),
}
LOADERS = {
    name: replace(
        PEERS[peer],
        name=name,
        adapter=f"{_LOADERS}.{adapter}",
        what=what,
        own=peer != "lerobot",
        environment="lerobot" if peer == "lerobot" else "",
        exact="video" not in what,
        note="",
    )
    for name, (peer, adapter, what) in _ABOUT.items()
}


@dataclass(frozen=True, kw_only=True)
class WindowsOptions(ComparisonOptions):
    """Options of the command."""

    root: str = option("build/demo/windows", str, "converted root in the layout frames")
    mixture: str = option("bridge", str, "a dataset of the root")
    loaders: tuple[str, ...] = option(tuple(LOADERS), several(known(LOADERS, "loader")), "loaders", metavar="A,B")
    camera: str = option("primary", str, "role or name of the camera")
    window: int = option(8, whole(1), "frames of a window, the last one of step t")
    horizon: int = option(16, whole(1), "actions of a window, the first one of step t")
    batch_size: int = option(64, whole(1), "rows of a batch")
    num_workers: int = option(2, whole(1), "worker processes")
    max_steps: int = option(20_000, whole(1), "refuse datasets with more steps")
    venvs: Path = option(Path(VENVS), Path, "folder of the environments", metavar="DIR")
    python: Path | None = option(None, Path, "an interpreter that has LeRobot, instead of its environment")


def export_windows(given: WindowsOptions, parameters: Parameters, folder: Path) -> set[str]:
    """Write the steps of a dataset, its LeRobot dataset, and the hash of every sample; return those of the pixels.

    Args:
        given: Options of the command.
        parameters: Root, dataset and split.
        folder: Folder to make.

    Raises:
        ArgumentError: The dataset does not exist, has too many steps, holes or no action, or is one of pairs.
        stream.base.errors.FormatError: A file is damaged.
    """
    selection = select(parameters.root, parameters.mixture, parameters.split, cameras=[given.camera])
    _check(selection, given)
    folder.mkdir(parents=True)
    name = selection.dataset.name
    export(parameters.root, folder / LEROBOT, dataset=name, split=parameters.split, cameras=[given.camera])
    ((key, camera),) = selection.cameras.items()
    distances = list(range(1 - given.window, 1))
    columns: dict[str, list[np.ndarray]] = {"action": [], "state": [], "language": []}
    numbers, ends, pixels, samples = [], [0], set(), {}
    with (folder / "pairs.bin").open("wb") as file:
        for episode in selection.episodes:
            stored = selection.read(episode)
            for column in ("action", "state"):
                columns[column].append(np.stack(stored.table[column].to_numpy()))
            columns["language"].append(np.array(stored.table["language"].to_pylist()))
            jpegs = [jpeg for jpeg in stored.frames[0] if isinstance(jpeg, bytes)]
            frames, action = np.stack([simplejpeg.decode_jpeg(jpeg) for jpeg in jpegs]), columns["action"][-1]
            for step, jpeg in enumerate(jpegs):
                ends.append(ends[-1] + file.write(jpeg))
                numbers.append((0, episode.number, step))
                wanted, ahead = step + np.array(distances), step + np.arange(given.horizon)
                taken, later = np.clip(wanted, 0, len(jpegs) - 1), np.clip(ahead, 0, len(jpegs) - 1)
                masked = action[later] * (later == ahead)[:, None]
                samples[f"{episode.number}/{step}"] = window_hash(
                    frames[taken], taken == wanted, masked, later == ahead
                )
                pixels.add(pixel_hash(frames[taken]))
    np.save(folder / "numbers.npy", np.array(numbers))
    np.save(folder / "ends.npy", np.array(ends[1:]))
    joined = {column: np.concatenate(values) for column, values in columns.items()}
    np.savez(folder / "steps.npz", action=joined["action"], state=joined["state"], language=joined["language"])
    size = sum(file.stat().st_size for file in selection.dataset.folder.rglob("*") if file.is_file())
    about = {
        "datasets": [{"name": name, "weight": 1.0, "bytes": size}],
        **{each: getattr(parameters, each) for each in ("root", "mixture", "split")},
        "shape": camera.shape,
        "vector": [given.horizon, joined["action"].shape[1], joined["state"].shape[1]],
        "window": distances,
        "image": f"observation.images.{key}",
        "fps": selection.rate,
        "loader": {"cameras": given.camera, "frames": distances, "bounds": "clamp", "horizon": given.horizon},
    }
    (folder / "about.json").write_text(json.dumps(about))
    (folder / SAMPLES).write_text(json.dumps(samples))
    return pixels


def _check(selection: Selection, given: WindowsOptions) -> None:
    name, spec = selection.dataset.name, selection.data.spec
    if selection.dataset.fields.layout != "frames":
        raise ArgumentError(f"dataset {name}: is in the layout pairs; convert it with `--layout frames`")
    if selection.has_holes or selection.left_out:
        raise ArgumentError(f"dataset {name}: has damaged episodes, which LeRobot cannot mask; choose another --split")
    if not (spec.action_size and spec.state_size):
        raise ArgumentError(f"dataset {name}: has no action or no state, which the samples need")
    if selection.steps > given.max_steps:
        raise ArgumentError(
            f"dataset {name} has {selection.steps:,} steps, of which each loader would make a copy; choose a smaller "
            "--split, or give more with --max-steps"
        )


def _points(given: WindowsOptions) -> tuple[list[Peer], list[Point]]:
    loaders = [LOADERS[name] for name in given.loaders]
    points = make_points(
        [(loader, "") for loader in loaders],
        metadata=["full"],
        order=["shuffled"],
        batch_size=[given.batch_size],
        num_workers=[given.num_workers],
    )
    return loaders, points


COMMAND = comparison(
    name="windows",
    about="Compare loaders of windows of frames, LeRobotDataset among them.",
    options=WindowsOptions,
    points=_points,
    export=export_windows,
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
