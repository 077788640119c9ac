"""Origin of samples in the source data, as ``loader.describe`` returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream.base.html import html_table
from stream.format.index import SplitIndex
from stream.format.names import Layout
from stream.order.rows import Rows
from stream.order.window import WindowTable


@dataclass(frozen=True)
class SampleRef:
    """Origin of one sample.

    Attributes:
        sample: Global number of the sample.
        dataset, split: Names of dataset and split.
        source_file: Source file of the episode, by its path in the source.
        episode_id: TFDS's id of the episode.
        episode: Number of the episode in the split, in the order of the shards.
        step: t, from 0.
        offset: Steps from t to the last frame.
        epoch: Count of the complete passes over the dataset before this sample.
        shard, record: Shard of the frames, and number of the pair's record in its ArrayRecord file; in the layout
            ``frames`` that of the record with the first stored camera's frame at t.
        language: Instruction at step t.
        frame_steps: Steps of the frames.
    """

    sample: int
    dataset: str
    split: str
    source_file: str
    episode_id: str
    episode: int
    step: int
    offset: int
    epoch: int
    shard: str
    record: int
    language: str
    frame_steps: tuple[int, ...] = ()

    def _repr_html_(self) -> str:
        return html_table((), vars(self).items())


@dataclass(frozen=True)
class EpisodeRef:
    """One episode of a converted dataset.

    Attributes:
        dataset, version, split: Names of dataset, version and split.
        episode: Number of the episode in the split.
        episode_id: TFDS's id of the episode.
    """

    dataset: str
    version: str
    split: str
    episode: int
    episode_id: str


def describe_rows(
    rows: Rows, splits: Sequence[SplitIndex], layouts: Sequence[Layout], windows: WindowTable
) -> list[SampleRef]:
    """Return the origin of each row, from the index alone; raise FormatError or OSError if the index is damaged."""
    refs = []
    for row in range(len(rows)):
        split, record = splits[int(rows.split[row])], int(rows.record[row])
        member = rows.member[row : row + 1]
        if layouts[split.member] == "pairs":
            columns = {name: int(split.records.array(name)[record]) for name in ("episode", "step", "steps_row")}
            episode, step, steps_row = columns.values()
        else:
            steps_row = record
            episode, step = (int(split.steps.array(name)[record]) for name in ("episode", "step"))
            record = int(split.episodes.array("first_record")[episode]) + step
        num_steps = int(split.episodes.array("num_steps")[episode])
        taken, _ = windows.steps(member, np.array([step]), np.array([num_steps]), rows.sample[row : row + 1])
        frame_steps = tuple(taken[0, windows.used[member[0]]].tolist())
        shard = int(split.records.array("shard")[record])
        source_file, episode_id = (
            split.episodes.take_texts(name, np.array([episode]))[0] for name in ("source_file", "episode_id")
        )
        refs.append(
            SampleRef(
                sample=int(rows.sample[row]),
                dataset=split.dataset,
                split=split.split,
                source_file=source_file,
                episode_id=episode_id,
                episode=episode,
                step=step,
                offset=frame_steps[-1] - step,
                epoch=int(rows.epoch[row]),
                shard=split.shards.stem(shard),
                record=split.record_number(record),
                language=split.steps.take_texts("language", np.array([steps_row]))[0],
                frame_steps=frame_steps,
            )
        )
    return refs
