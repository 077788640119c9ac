"""Estimate of the result of a conversion from some of its episodes, for ``--dry-run``."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import compress, groupby, islice
from math import ceil
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from convert.errors import CorruptFrame, DamagedEpisode
from convert.index.derived import vector_field
from convert.plan import Conversion, DatasetPlan, PlannedCamera
from convert.shard.language import step_language
from convert.shard.pairs import first_steps
from convert.shard.part_rows import PartRows
from convert.shard.video import encode_chunk
from convert.source.episode import Episode, Frames
from convert.source.protocol import SourceShard, Span, clip
from stream.format.names import BLOCK, TableKind

_EPISODES = 16
_RECORDS = 8
"""Records of each episode and camera, where reading a frame does not decode those before it."""
_RECORD = 64
"""Bytes of a record in addition to its frames."""
_RESIZED = {"stretch": "stretched", "crop": "cropped", "pad": "padded"}
_NO_LOCATIONS = {"position": np.int64, "num_bytes": np.int32, "xxh3_64": np.uint64}


class Estimate(NamedTuple):
    """Estimated result of a conversion; None if no episode was read.

    Attributes:
        records: Count of pairs, or of frames.
        bytes: Size of the shards and the index.
        sizes: Size of the stored frames by camera, and what it does to another aspect ratio.
    """

    records: int | None = None
    bytes: int | None = None
    sizes: Mapping[str, str] = {}


def estimate(conversion: Conversion) -> Estimate:
    """Estimate from a few episodes, some frames of which are converted.

    Where the metadata have the length of each episode, the episodes come from all over the dataset, and records are
    counted. Else they are the first of the largest shard, scaled by bytes. Of a dataset that would have to be fetched
    for this, the estimate has only the records.
    """
    plan, episodes, exact_records = conversion.plan, _wanted(conversion), None
    if episodes is not None:
        starts = [len(first_steps(episode.steps, plan.offsets[-1])) for episode in episodes]
        exact_records = sum(starts) * len(plan.cameras)
    largest = max((job.shard for job in conversion.jobs), key=lambda shard: shard.bytes, default=None)
    if largest is None or any(job.shard.is_fetched for job in conversion.jobs):
        return Estimate(exact_records)
    sample = _Sample(plan, is_video=bool(conversion.source.libraries))
    for shard, spans in _spread(episodes) if episodes else [(largest, clip([largest.every], 0, _EPISODES))]:
        sample.add(shard, spans)
    if not sample.source_bytes:
        return Estimate()
    shard_bytes = [job.size for job in conversion.jobs]
    if episodes is not None:
        by_shard = groupby(episodes, key=attrgetter("shard"))
        shard_bytes = [sum(episode.bytes for episode in group) for _, group in by_shard]
    total_bytes = sum(shard_bytes)
    bytes_scale = total_bytes / sample.source_bytes
    records = round(sample.records * bytes_scale) if exact_records is None else exact_records
    # Encoded images are in proportion to the source's bytes, all else to the count of records.
    by_bytes = exact_records is None or (sample.are_encoded and len(sample.record_bytes) > len(plan.cameras))
    records_scale = bytes_scale if by_bytes or not sample.records else records / sample.records
    stored_bytes = sample.stored_bytes * records_scale
    # A file goes to the end of a block, and has one more.
    stored_shards = [stored_bytes * source_bytes / total_bytes for source_bytes in shard_bytes]
    file_bytes = sum(ceil(num_bytes / BLOCK) + 1 for num_bytes in stored_shards) * BLOCK
    return Estimate(records, round(file_bytes + sample.index_bytes * bytes_scale), sample.sizes)


class _Wanted(NamedTuple):
    """An episode to convert: its number in the shard, the count of its steps, and its bytes in the source."""

    shard: SourceShard
    number: int
    steps: int
    bytes: int


def _wanted(conversion: Conversion) -> list[_Wanted] | None:
    """Return the episodes to convert, None if the metadata lack a length."""
    episode_list, episodes, is_listed = conversion.plan.episode_list, [], []
    for job in conversion.jobs:
        shard = job.shard
        lengths, episode_ids = shard.lengths, shard.ids
        if len(lengths) != shard.records or (episode_list is not None and not episode_ids):
            return None
        episode_sizes = shard.sizes or [shard.bytes * length // (sum(lengths) or 1) for length in lengths]
        episode_numbers = [number for episode_span in job.spans for number in range(*episode_span)]
        episodes += [_Wanted(shard, number, lengths[number], episode_sizes[number]) for number in episode_numbers]
        is_listed += [episode_list is None or episode_list.chooses([episode_ids[number]]) for number in episode_numbers]
    # A list of other keys than ids chooses nothing, and then nothing is known.
    return list(compress(episodes, is_listed)) or episodes


def _spread(episodes: Sequence[_Wanted]) -> list[tuple[SourceShard, list[Span]]]:
    """Return some episodes from all over a dataset, by shard."""
    num_chosen = min(len(episodes), _EPISODES)
    chosen = [episodes[(2 * position + 1) * len(episodes) // (2 * num_chosen)] for position in range(num_chosen)]
    by_shard = groupby(chosen, key=attrgetter("shard"))
    return [(shard, [(episode.number, episode.number + 1) for episode in group]) for shard, group in by_shard]


class _Sample:
    """Some episodes of a dataset as they would be stored.

    If ``is_video``, the source has to decode all frames before one, so that only the first record is converted.
    ``record_bytes`` are the different sizes of records by camera. ``are_encoded`` says that frames are single images.
    """

    def __init__(self, plan: DatasetPlan, *, is_video: bool) -> None:
        self._plan, self._is_video = plan, is_video
        self.source_bytes = self.records = self.index_bytes = 0
        self.stored_bytes = 0.0
        self.record_bytes: set[tuple[str, int]] = set()
        self.are_encoded = False
        self.sizes: dict[str, str] = {}
        derived_types = [vector_field(column, vector).type for column, vector in plan.vectors.items()]
        self._derived_bytes = sum(getattr(arrow_type, "list_size", 1) * 4 for arrow_type in derived_types)

    def add(self, shard: SourceShard, episode_spans: Sequence[Span]) -> None:
        """Add episodes of a shard; damaged ones are passed over."""
        plan = self._plan
        part_rows = PartRows(plan.features, offset=plan.offset, write_batch=self._measure)
        with shard.open(plan.wanted, episode_spans) as reader:
            for source_file, position, num_bytes, episode in reader:
                if not isinstance(episode, Episode):
                    continue
                start_steps = first_steps(episode.num_steps, plan.offsets[-1])
                bytes_per_step = 0.0
                try:
                    for camera, frames in zip(plan.cameras, episode.cameras, strict=True):
                        mean_bytes = self._mean_bytes(camera, frames, episode.num_steps)
                        bytes_per_step += len(plan.offsets) * mean_bytes + _RECORD / camera.policy.gop
                except CorruptFrame:
                    continue
                self.source_bytes += num_bytes
                self.stored_bytes += len(start_steps) * bytes_per_step
                part_rows.add(
                    episode,
                    position,
                    source_file=source_file,
                    status="ok",
                    language=step_language(episode, plan.language, encoding=plan.language_encoding),
                    robot=plan.robot,
                    first_steps=list(start_steps) * len(plan.cameras),
                    cameras=np.repeat(range(len(plan.cameras)), len(start_steps)).tolist(),
                )
        part_rows.finish({name: np.zeros(part_rows.num_records, dtype) for name, dtype in _NO_LOCATIONS.items()})
        self.records += part_rows.num_records
        self.index_bytes += part_rows.num_steps * self._derived_bytes

    def _measure(self, kind: TableKind, batch: pa.RecordBatch) -> None:
        self.index_bytes += batch.nbytes

    def _mean_bytes(self, camera: PlannedCamera, frames: Frames | DamagedEpisode | None, num_steps: int) -> float:
        """Return the mean bytes of a frame in some records of an episode, and note the sizes of frames."""
        if isinstance(frames, DamagedEpisode | None):
            return 0
        frames_per_record, remaining_frames = camera.policy.gop, iter(frames)
        num_records = -(-num_steps // frames_per_record)
        record_stride = max(1, num_records if self._is_video else num_records // _RECORDS)
        total_bytes = num_frames = 0
        for _ in range(0, num_records, record_stride):
            source_frames, encoded_frames = list(islice(remaining_frames, frames_per_record)), []
            for source_frame in source_frames:
                self.are_encoded |= isinstance(source_frame, bytes)
                with suppress(CorruptFrame):
                    encoded_frames.append(camera.convert(source_frame))
            num_frames += len(source_frames)
            if encoded_frames:
                first, is_video = encoded_frames[0], encoded_frames[0].video is not None
                record = encode_chunk(encoded_frames, camera.policy)[0] if is_video else first.data
                total_bytes += len(record or b"")
                self.record_bytes.add((camera.name, len(record or b"")))
                (height, width), (old_height, old_width) = first.size, first.source_size
                self.sizes[camera.name] = f"{height}x{width}"
                if height * old_width != width * old_height:
                    self.sizes[camera.name] += f", {_RESIZED[camera.policy.resize]} from {old_height}x{old_width}"
            elif not total_bytes:
                raise CorruptFrame("no frame of the first record can be decoded")
            # The frames between are read, and not converted.
            deque(islice(remaining_frames, (record_stride - 1) * frames_per_record), maxlen=0)
        return total_bytes / max(1, num_frames)
