"""Where a sample comes from, in words: the rows of ``loader.describe``."""

from __future__ import annotations

from dataclasses import dataclass

from stream.rows import Rows
from stream.views import Views


@dataclass(frozen=True)
class SampleRef:
    """One sample of a batch.

    sample: its global number. dataset, split: as converted. source_file: the TFRecord file that it was converted from.
    episode_id: TFDS's id of the episode. episode: its number in the split, in the order of the shards. step: t, from 0;
    the pair is (t, t + offset). epoch: how often the dataset had been seen whole before. shard, record: where the
    frames lie. language: the instruction at step t.
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


def describe_rows(rows: Rows, views: Views) -> list[SampleRef]:
    """Say of each row where it comes from. Reads sidecars only; raises FormatError or OSError if one is damaged."""
    refs = []
    for i in range(len(rows)):
        record = int(rows.record[i])
        shard = views.cache[int(rows.shard[i])]
        info = shard.info
        columns = shard.records
        episode = int(columns["episode"][record])
        indices, text = shard.language
        refs.append(
            SampleRef(
                sample=int(rows.sample[i]),
                dataset=info.dataset,
                split=info.split,
                source_file=shard.episodes["source_file"][episode].as_py(),
                episode_id=shard.episodes["episode_id"][episode].as_py(),
                episode=info.first_episode + episode,
                step=int(columns["step"][record]),
                offset=int(columns["offset"][record]),
                epoch=int(rows.epoch[i]),
                shard=info.stem,
                record=record,
                language=text(int(indices[columns["steps_row"][record]])),
            )
        )
    return refs
