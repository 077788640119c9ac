"""Origin of samples in the source data, as ``loader.describe`` returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream.base.html import html_table
from stream.format.index import SplitIndex
from stream.format.names import Layout
from stream.order.rows import Rows
from stream.sample.window import WindowTable


@dataclass(frozen=True)
class SampleRef:
    """Origin of one sample.

    Attributes:
        sample: Global number of the sample.
        dataset, split: Names of dataset and split.
        source_file: Path of the episode's source file in the source.
        episode_id: TFDS's id of the episode.
        episode: Number of the episode in the split, in the order of the shards.
        step: t, from 0.
        offset: Steps from t to the last frame.
        epoch: Count of the complete passes over the dataset before this sample.
        shard: Shard of the frames.
        record: Number of the pair's record in its ArrayRecord file; in the layout ``frames`` the number of the record
            with the first stored camera's frame at t.
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
    """Return the origin of each row, from only the index; raise FormatError or OSError if the index is damaged."""
    references = []
    for row_number in range(len(rows)):
        split_index, record_row = splits[int(rows.split[row_number])], int(rows.record[row_number])
        row_members = rows.member[row_number : row_number + 1]
        if layouts[split_index.member] == "pairs":
            records = split_index.records
            episode, step, steps_row = (int(records.array(key)[record_row]) for key in ("episode", "step", "steps_row"))
        else:
            steps_row = record_row
            episode, step = (int(split_index.steps.array(key)[record_row]) for key in ("episode", "step"))
            record_row = int(split_index.episodes.array("first_record")[episode]) + step
        num_steps = split_index.episodes.array("num_steps")[episode : episode + 1].astype(np.int64)
        samples = rows.sample[row_number : row_number + 1]
        window_steps, _ = windows.steps(row_members, np.array([step]), num_steps, samples)
        frame_steps = tuple(window_steps[0, windows.used[row_members[0]]].tolist())
        shard_number = int(split_index.records.array("shard")[record_row])
        episodes, row = split_index.episodes, np.array([episode])
        source_file, episode_id = (episodes.take_texts(key, row)[0] for key in ("source_file", "episode_id"))
        references.append(
            SampleRef(
                sample=int(rows.sample[row_number]),
                dataset=split_index.dataset,
                split=split_index.split,
                source_file=source_file,
                episode_id=episode_id,
                episode=episode,
                step=step,
                offset=frame_steps[-1] - step,
                epoch=int(rows.epoch[row_number]),
                shard=split_index.shards.stem(shard_number),
                record=split_index.record_number(record_row),
                language=split_index.steps.take_texts("language", np.array([steps_row]))[0],
                frame_steps=frame_steps,
            )
        )
    return references
