"""Episodes and cameras of a converted dataset to export, checked before anything is written."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stream.base.errors import ArgumentError
from stream.batch.cameras import LoadedCamera
from stream.cache.in_place import open_catalog
from stream.format.catalog import Dataset
from stream.format.episode_list import EpisodeList, read_list
from stream.format.frame import StoredCamera
from stream.format.index import SplitIndex
from stream.loader.episode import StoredEpisode, read_stored_episode, stored_steps
from stream.loader.open_mixture import OpenMixture, open_mixture
from stream.loader.sample_spec import SampleSpec
from stream.order.choices import EpisodeChoice
from stream.storage.remote import CachedRoot

_NUMBERS = re.compile(r"[0-9]{1,15}(?::[0-9]{1,15})?")
_NO_KEY = re.compile(r"[^A-Za-z0-9_-]")
_Candidates = Mapping[tuple[str, int], None]
"""Split and number of the episodes in a split expression, in order."""


@dataclass(frozen=True)
class ChosenEpisode:
    """One episode to export.

    Attributes:
        split: Name of its split.
        number: Number of the episode in the split.
        episode_id: Id of the episode in the source.
        steps: Count of its steps.
    """

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
    episodes: tuple[ChosenEpisode, ...]
    rate: float
    has_holes: bool
    left_out: Mapping[str, int]

    @property
    def dataset(self) -> Dataset:
        """Dataset of the episodes."""
        return self.data.datasets[0]

    @property
    def indexes(self) -> tuple[SplitIndex, ...]:
        """Index of each split that episodes are of."""
        used = {episode.split for episode in self.episodes}
        return tuple(index for index in self.data.sample_index.splits if index.split in used)

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
    """Choose episodes of a converted root.

    Args:
        root: Folder that ``convert.run`` wrote.
        dataset: Name of a dataset, or ``name:version``.
        split: Split expression in TFDS's grammar.
        episodes: Numbers (``3``), ranges (``0:10``) or ids of episodes, with commas between, or a file of ids; all of
            the split by default.
        cameras: Roles or names of cameras; by default all of colour that are stored.
        fps: Steps per second of a dataset that declares none.

    Raises:
        ArgumentError: The dataset, split, a camera or an episode does not exist; the dataset has no rate; or its pairs
            lack frames of an episode.
        stream.base.errors.FormatError: A manifest or an index is damaged.
    """
    open_dataset = open_catalog(root).open(dataset)
    fields = open_dataset.fields
    is_frames = fields.layout == "frames"
    colour_cameras = [camera.name for camera in fields.stored_cameras if is_frames and not camera.is_depth]
    sample_spec = SampleSpec(cameras=list(cameras or colour_cameras) or None, frames=[0] if is_frames else None)
    mixture = open_mixture(root, {dataset: 1}, split=split, spec=sample_spec)
    if depth := ", ".join(camera.frames for camera in mixture.cameras if camera.is_depth):
        raise ArgumentError(f"dataset {open_dataset.name}: {depth} cannot be exported; choose --cameras of colour")
    keys = _keys([fields.stored_cameras[camera.stored[0][0]] for camera in mixture.cameras])
    mixture.check.start()
    rate = _rate(open_dataset, fps)
    chosen, left_out = _choose(mixture, episodes)
    if not is_frames:
        _check_complete(mixture, chosen)
    lacks_frames = mixture.sample_index.left_out[0].get("holes", 0) > 0
    return Selection(
        mixture, dict(zip(keys, mixture.cameras, strict=True)), tuple(chosen), rate, lacks_frames, left_out
    )


def _rate(dataset: Dataset, fps: float | None) -> float:
    declared_rate = dataset.fields.control_frequency
    if declared_rate is None and fps is None:
        raise ArgumentError(
            f"dataset {dataset.name}: declares no rate (control_frequency), and LeRobot needs one; give the steps per "
            "second with --fps"
        )
    rate = fps if declared_rate is None else declared_rate
    if fps is not None and fps != rate:
        raise ArgumentError(f"dataset {dataset.name}: --fps {fps:g}, but the dataset declares {rate:g}; omit --fps")
    return float(rate or 0)


def _keys(cameras: Sequence[StoredCamera]) -> list[str]:
    """Return the key of each camera: its role, or its name where cameras share a role."""
    roles = Counter(camera.role for camera in cameras)
    camera_names = [camera.role if camera.role and roles[camera.role] == 1 else camera.name for camera in cameras]
    keys = [_NO_KEY.sub("_", camera_name) or "primary" for camera_name in camera_names]
    return [key if keys.count(key) == 1 else f"{key}_{camera_number}" for camera_number, key in enumerate(keys)]


def _choose(mixture: OpenMixture, episodes: str | None) -> tuple[list[ChosenEpisode], dict[str, int]]:
    """Return the episodes to export, and the count of omitted episodes by status."""
    by_split = {split_index.split: split_index for split_index in mixture.sample_index.splits}
    ranges = mixture.sample_index.members[0].ranges
    candidates = dict.fromkeys((span.split, number) for span in ranges for number in range(span.start, span.stop))
    named_episodes = None if episodes is None else dict(_named(mixture, episodes, candidates, by_split))
    chosen: list[ChosenEpisode] = []
    left_out: Counter[str] = Counter()
    for split, number in candidates:
        if named_episodes is not None and (split, number) not in named_episodes:
            continue
        split_index = by_split[split]
        row_numbers = np.array([number])
        num_steps = int(split_index.episodes.array("num_steps")[number])
        num_records = int(split_index.episodes.array("num_records")[number])
        (status,) = split_index.episodes.take_texts("status", row_numbers)
        (episode_id,) = split_index.episodes.take_texts("episode_id", row_numbers)
        if num_steps and (num_records or mixture.spec.layouts[0] == "pairs"):
            chosen.append(ChosenEpisode(split, number, episode_id, num_steps))
        elif named_episodes and named_episodes[split, number]:
            raise ArgumentError(
                f"--episodes: dataset {mixture.names[0]}, split {split}, episode {number} ({episode_id}) has no "
                f"{'frames' if num_steps else 'steps'} (its status is {status!r}); leave it out"
            )
        else:
            left_out[status] += 1
    return chosen, dict(left_out)


def _named(
    mixture: OpenMixture, episodes_text: str, candidates: _Candidates, by_split: Mapping[str, SplitIndex]
) -> Iterator[tuple[tuple[str, int], bool]]:
    """Yield split and number of the episodes in ``--episodes``, and whether the text names exactly this episode."""
    context = f"dataset {mixture.names[0]}, split {mixture.members[0].split!r}"
    # Not Path.is_file, which raises for a list longer than a file name can be.
    words = [] if os.path.isfile(episodes_text) else [word.strip() for word in episodes_text.split(",") if word.strip()]
    numbers = [word for word in words if _NUMBERS.fullmatch(word)]
    ids = [word for word in words if word not in numbers]
    if numbers and len(by_split) > 1:
        raise ArgumentError(f"--episodes {numbers[0]}: numbers need one split, {context} has several; give ids")
    for word in numbers:
        first, _, stop = word.partition(":")
        (split,) = by_split
        for number in range(int(first), int(stop or int(first) + 1)):
            if (split, number) not in candidates:
                available = [candidate for _, candidate in candidates]
                bounds = f"{min(available)} to {max(available)}"
                raise ArgumentError(f"--episodes {word}: {context} has no episode {number}; its episodes are {bounds}")
            yield (split, number), True
    if ids or not words:
        yield from _with_ids(read_list(ids or episodes_text, "--episodes"), candidates, by_split, context)


def _with_ids(
    episode_list: EpisodeList, candidates: _Candidates, by_split: Mapping[str, SplitIndex], context: str
) -> Iterator[tuple[tuple[str, int], bool]]:
    choice = EpisodeChoice(episode_list)
    unknown = choice.unknown_in(list(by_split.values())) if choice.listed.keeps else []
    if unknown:
        index = next(iter(by_split.values()))
        (example_id,) = index.episodes.take_texts("episode_id", np.zeros(1, np.int64))
        more_text = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ArgumentError(
            f"--episodes: {context} has no episode {unknown[0]!r:.120}{more_text}; its ids look like {example_id!r}. "
            "Give numbers, ids with commas between, or a file of ids"
        )
    is_kept = {split: choice.select(index, slice(None), "episodes") for split, index in by_split.items()}
    matches = [(split, number) for split, number in candidates if is_kept[split][number]]
    if not matches:
        raise ArgumentError(f"--episodes: none of the {len(choice.listed.names):,} episodes is in {context}")
    yield from ((match, episode_list.keeps and not episode_list.patterns) for match in matches)


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
