"""Origin of samples in the source data, as ``loader.describe`` returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream.format.index import SplitIndex
from stream.order.rows import Rows


@dataclass(frozen=True)
class SampleRef:
    """Origin of one sample.

    Attributes:
        sample: Global number of the sample.
        dataset, split: Names of dataset and split.
        source_file: TFRecord file that was converted.
        episode_id: TFDS's id of the episode.
        episode: Number of the episode in the split, in the order of the shards.
        step: t, from 0; the pair is (t, t + offset).
        offset: Distance of the two frames in steps.
        epoch: Count of the complete passes over the dataset before this sample.
        shard, record: Shard of the frames, and number of the record in its ArrayRecord file.
        language: Instruction at step t.
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


def describe_rows(rows: Rows, splits: Sequence[SplitIndex]) -> list[SampleRef]:
    """Return the origin of each row, from the index alone; raise FormatError or OSError if the index is damaged."""
    refs = []
    for row in range(len(rows)):
        split, record = splits[int(rows.split[row])], int(rows.record[row])
        shard, episode, step, offset, steps_row = (
            int(split.records.array(name)[record]) for name in ("shard", "episode", "step", "offset", "steps_row")
        )
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
                offset=offset,
                epoch=int(rows.epoch[row]),
                shard=split.shards.stem(shard),
                record=record - int(split.shards.first_records[shard]),
                language=split.steps.take_texts("language", np.array([steps_row]))[0],
            )
        )
    return refs
