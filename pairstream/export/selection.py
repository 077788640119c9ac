"""Episodes and cameras of a converted dataset to export, checked before anything is written."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stream.base.errors import ArgumentError
from stream.batch.cameras import LoadedCamera
from stream.cache.in_place import open_catalog
from stream.format.catalog import Dataset
from stream.format.episode_list import read_list
from stream.format.frame import StoredCamera
from stream.format.index import SplitIndex
from stream.loader.episode import StoredEpisode, read_stored_episode, stored_steps
from stream.loader.open_mixture import OpenMixture, open_mixture
from stream.loader.sample_spec import SampleSpec
from stream.sample.choices import EpisodeChoice
from stream.sample.frames import Frames
from stream.storage.remote import CachedRoot

_NUMBERS = re.compile(r"[0-9]{1,15}(?::[0-9]{1,15})?")
_NO_KEY = re.compile(r"[^A-Za-z0-9_-]")


class ChosenEpisode(NamedTuple):
    """One episode to export: its split, number in the split, id in the source, and count of steps."""

    split: str
    number: int
    episode_id: str
    steps: int


@dataclass(frozen=True, eq=False)
class Selection:
    """Episodes of one dataset.

    Attributes:
        data: Mixture of only this dataset.
        cameras: Cameras by the last part of their feature's name.
        episodes: Episodes, in the order of the split.
        rate: Steps per second.
        has_holes: Whether steps of the split lack frames.
        left_out: Count of the episodes without steps or frames, by status.
    """

    data: OpenMixture
    cameras: Mapping[str, LoadedCamera]
    episodes: Sequence[ChosenEpisode]
    rate: float
    has_holes: bool
    left_out: Mapping[str, int]

    @property
    def dataset(self) -> Dataset:
        """Dataset of the episodes."""
        return self.data.datasets[0]

    @property
    def steps(self) -> int:
        """Count of the steps of all episodes."""
        return sum(episode.steps for episode in self.episodes)

    def read(self, episode: ChosenEpisode) -> StoredEpisode:
        """Read an episode; raise FormatError if a record is damaged."""
        return read_stored_episode(self.data, self.dataset.name, episode.number, split=episode.split)


def select(
    root: str | Path | CachedRoot,
    dataset: str,
    split: str,
    *,
    episodes: str | None = None,
    cameras: Sequence[str] | None = None,
    fps: float | None = None,
) -> Selection:
    """Choose episodes of a converted root, by the arguments of ``export``.

    Raises:
        ArgumentError: The dataset, split, a camera or an episode does not exist; the dataset has no rate; or its pairs
            lack frames of an episode.
        stream.base.errors.FormatError: A manifest or an index is damaged.
    """
    open_dataset = open_catalog(root).open(dataset)
    fields = open_dataset.fields
    is_frames = fields.layout == "frames"
    colour_cameras = [camera.name for camera in fields.stored_cameras if is_frames and not camera.is_depth]
    sample_spec = SampleSpec(frames=Frames([0] if is_frames else None, cameras=list(cameras or colour_cameras) or None))
    mixture = open_mixture(root, {dataset: 1}, split=split, spec=sample_spec)
    if depth := ", ".join(camera.frames for camera in mixture.cameras if camera.is_depth):
        raise ArgumentError(f"dataset {open_dataset.name}: {depth} cannot be exported; choose --cameras of colour")
    keys = _keys([fields.stored_cameras[camera.stored[0][0]] for camera in mixture.cameras])
    mixture.check.start()
    rate = _rate(open_dataset, fps)
    chosen, left_out = _choose(mixture, episodes)
    if not is_frames:
        _check_complete(mixture, chosen)
    has_holes = mixture.sample_index.left_out[0].get("holes", 0) > 0
    return Selection(mixture, dict(zip(keys, mixture.cameras, strict=True)), chosen, rate, has_holes, left_out)


def _rate(dataset: Dataset, fps: float | None) -> float:
    declared_rate = dataset.fields.control_frequency
    if declared_rate is None and fps is None:
        raise ArgumentError(
            f"dataset {dataset.name}: declares no rate (control_frequency), and LeRobot needs one; give the steps per "
            "second with --fps"
        )
    if declared_rate is not None and fps not in (None, declared_rate):
        hint = f"--fps {fps:g}, but the dataset declares {declared_rate:g}; omit --fps"
        raise ArgumentError(f"dataset {dataset.name}: {hint}")
    return float(declared_rate or fps or 0)


def _keys(cameras: Sequence[StoredCamera]) -> list[str]:
    """Return the key of each camera: its role, or its name where cameras share a role."""
    roles = Counter(camera.role for camera in cameras)
    camera_names = [camera.role if camera.role and roles[camera.role] == 1 else camera.name for camera in cameras]
    keys = [_NO_KEY.sub("_", camera_name) or "primary" for camera_name in camera_names]
    return [key if keys.count(key) == 1 else f"{key}_{camera_number}" for camera_number, key in enumerate(keys)]


def _choose(mixture: OpenMixture, episodes_text: str | None) -> tuple[list[ChosenEpisode], dict[str, int]]:
    """Return the episodes to export, and the count of omitted episodes by status."""
    indexes = {index.split: index for index in mixture.sample_index.splits}
    ranges = mixture.sample_index.members[0].ranges
    candidates = [(span.split, number) for span in ranges for number in range(span.start, span.stop)]
    is_named = dict.fromkeys(candidates, False)
    if episodes_text is not None:
        is_named = _named(mixture, episodes_text, candidates, indexes)
    chosen: list[ChosenEpisode] = []
    left_out: Counter[str] = Counter()
    for split, number in candidates:
        if (split, number) not in is_named:
            continue
        episodes, row_numbers = indexes[split].episodes, np.array([number])
        num_steps, num_records = (int(episodes.array(name)[number]) for name in ("num_steps", "num_records"))
        status, episode_id = (episodes.take_texts(name, row_numbers)[0] for name in ("status", "episode_id"))
        if num_steps and (num_records or mixture.spec.layouts[0] == "pairs"):
            chosen.append(ChosenEpisode(split, number, episode_id, num_steps))
        elif is_named[split, number]:
            raise ArgumentError(
                f"--episodes: dataset {mixture.names[0]}, split {split}, episode {number} ({episode_id}) has no "
                f"{'frames' if num_steps else 'steps'} (its status is {status!r}); leave it out"
            )
        else:
            left_out[status] += 1
    return chosen, dict(left_out)


def _named(
    mixture: OpenMixture, episodes_text: str, candidates: Sequence[tuple[str, int]], indexes: Mapping[str, SplitIndex]
) -> dict[tuple[str, int], bool]:
    """Return split and number of the episodes in ``--episodes``, and whether the text names exactly this episode."""
    context = f"dataset {mixture.names[0]}, split {mixture.members[0].split!r}"
    # Not Path.is_file, which raises for a list longer than a file name can be.
    words = [] if os.path.isfile(episodes_text) else [word.strip() for word in episodes_text.split(",") if word.strip()]
    numbers = [word for word in words if _NUMBERS.fullmatch(word)]
    ids = [word for word in words if word not in numbers]
    if numbers and len(indexes) > 1:
        raise ArgumentError(f"--episodes {numbers[0]}: numbers need one split, {context} has several; give ids")
    is_named: dict[tuple[str, int], bool] = {}
    available = {number: split for split, number in candidates}
    for word in numbers:
        first, _, stop = word.partition(":")
        for number in range(int(first), int(stop or int(first) + 1)):
            if number not in available:
                bounds = f"{min(available)} to {max(available)}"
                raise ArgumentError(f"--episodes {word}: {context} has no episode {number}; its episodes are {bounds}")
            is_named[available[number], number] = True
    if words and not ids:
        return is_named
    episode_list = read_list(ids or episodes_text, "--episodes")
    choice = EpisodeChoice(episode_list)
    unknown = choice.unknown_in(list(indexes.values())) if episode_list.keeps else []
    if unknown:
        index = next(iter(indexes.values()))
        (example_id,) = index.episodes.take_texts("episode_id", np.zeros(1, np.int64))
        more_text = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ArgumentError(
            f"--episodes: {context} has no episode {unknown[0]!r:.120}{more_text}; its ids look like {example_id!r}. "
            "Give numbers, ids with commas between, or a file of ids"
        )
    is_kept = {split: choice.select(index, slice(None), "episodes") for split, index in indexes.items()}
    matches = [(split, number) for split, number in candidates if is_kept[split][number]]
    if not matches:
        raise ArgumentError(f"--episodes: none of the {len(episode_list.names):,} episodes is in {context}")
    return is_named | dict.fromkeys(matches, episode_list.keeps and not episode_list.patterns)


def _check_complete(mixture: OpenMixture, episodes: Sequence[ChosenEpisode]) -> None:
    """Raise ArgumentError if records of the layout ``pairs`` lack frames of an episode."""
    for episode in episodes:
        dataset_name = mixture.names[0]
        num_stored = len(stored_steps(mixture, dataset_name, episode.number, split=episode.split))
        if num_stored < episode.steps:
            raise ArgumentError(
                f"dataset {dataset_name}, split {episode.split}, episode {episode.number}: its pairs hold the frames "
                f"of {num_stored} of {episode.steps} steps, and LeRobot needs all; convert it with `--layout frames`, "
                "or choose other --episodes"
            )
