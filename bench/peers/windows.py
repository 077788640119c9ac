"""Windows of a dataset and its LeRobot dataset, for the peers that read windows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import simplejpeg

from bench.loader.parameters import Parameters
from bench.peers.export import exported_records, stored_bytes
from bench.peers.loaders.windows import LEROBOT
from bench.peers.protocol import pixel_hash, window_hash
from pairstream.export.command import export
from pairstream.export.selection import Selection, select
from stream.base.errors import ArgumentError

SAMPLES = "samples.json"
"""File of an export with the hash of every sample, if all are to be checked."""


def export_windows(
    parameters: Parameters, folder: Path, *, camera: str, window: int, action_steps: int, max_steps: int
) -> set[str]:
    """Write the steps of a dataset, its LeRobot dataset, and the hash of every sample; return those of the pixels."""
    selection = select(parameters.root, parameters.mixture, parameters.split, cameras=[camera])
    _check(selection, max_steps)
    folder.mkdir(parents=True)
    dataset_name = selection.dataset.name
    export(parameters.root, folder / LEROBOT, dataset=dataset_name, split=parameters.split, cameras=[camera])
    ((camera_key, camera_spec),) = selection.cameras.items()
    distances = list(range(1 - window, 1))
    columns: dict[str, list[np.ndarray]] = {"action": [], "state": [], "language": []}
    pixels, samples = set(), {}
    with exported_records(folder) as write:
        for episode in selection.episodes:
            stored = selection.read(episode)
            for column in ("action", "state"):
                columns[column].append(np.stack(stored.table[column].to_numpy()))
            columns["language"].append(np.array(stored.table["language"].to_pylist()))
            jpegs = [jpeg for jpeg in stored.frames[0] if isinstance(jpeg, bytes)]
            frames, action = np.stack([simplejpeg.decode_jpeg(jpeg) for jpeg in jpegs]), columns["action"][-1]
            for step, jpeg in enumerate(jpegs):
                write(jpeg, (0, episode.number, step))
                # The closest step replaces those outside the episode.
                frame_steps, future_steps = step + np.array(distances), step + np.arange(action_steps)
                inside_frames, inside_actions = (
                    np.clip(steps, 0, len(jpegs) - 1) for steps in (frame_steps, future_steps)
                )
                action_mask = inside_actions == future_steps
                masked = action[inside_actions] * action_mask[:, None]
                samples[f"{episode.number}/{step}"] = window_hash(
                    frames[inside_frames], inside_frames == frame_steps, masked, action_mask
                )
                pixels.add(pixel_hash(frames[inside_frames]))
    joined = {column: np.concatenate(values) for column, values in columns.items()}
    np.savez(folder / "steps.npz", allow_pickle=False, **joined)
    about = {
        "datasets": [{"name": dataset_name, "weight": 1.0, "bytes": stored_bytes(selection.dataset)}],
        **{name: getattr(parameters, name) for name in ("root", "mixture", "split")},
        "shape": camera_spec.shape,
        "vector": [action_steps, joined["action"].shape[1], joined["state"].shape[1]],
        "window": distances,
        "image": f"observation.images.{camera_key}",
        "fps": selection.rate,
        "loader": {"frames": {"steps": distances, "cameras": camera, "edges": "repeat"}, "action": action_steps},
    }
    (folder / "about.json").write_text(json.dumps(about))
    (folder / SAMPLES).write_text(json.dumps(samples))
    return pixels


def _check(selection: Selection, max_steps: int) -> None:
    name, spec = selection.dataset.name, selection.data.spec
    if selection.dataset.fields.layout != "frames":
        raise ArgumentError(f"dataset {name}: is in the layout pairs; convert it with `--layout frames`")
    if selection.has_holes or selection.left_out:
        raise ArgumentError(f"dataset {name}: has damaged episodes, which LeRobot cannot mask; choose another --split")
    if not (spec.action_size and spec.state_size):
        raise ArgumentError(f"dataset {name}: has no action or no state, which the samples need")
    if selection.steps > max_steps:
        raise ArgumentError(
            f"dataset {name} has {selection.steps:,} steps, of which each loader would make a copy; choose a smaller "
            "--split, or allow more with --max-samples"
        )
