"""Estimate of the result of a conversion from some of its episodes, for ``--dry-run``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import compress, groupby, islice
from math import ceil
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
"""Bytes of a record beside its frames."""
_RESIZED = {"stretch": "stretched", "crop": "cropped", "pad": "padded"}
_NO_PLACES = {"position": np.int64, "num_bytes": np.int32, "xxh3_64": np.uint64}


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

    Where the metadata tell the length of each episode, the episodes come from all over the dataset, and records are
    counted. Else they are the first of the largest shard, scaled by bytes. Of a dataset that would have to be fetched
    for this, the estimate has the records alone.
    """
    plan = conversion.plan
    wanted = _wanted(conversion)
    exact = None
    if wanted is not None:
        exact = sum(len(first_steps(each.steps, plan.offsets[-1])) for each in wanted) * len(plan.cameras)
    largest = max((job.shard for job in conversion.jobs), key=lambda shard: shard.bytes, default=None)
    if largest is None or any(job.shard.is_fetched for job in conversion.jobs):
        return Estimate(exact)
    chosen = [(largest, clip([largest.every], 0, _EPISODES))] if not wanted else _spread(wanted)
    found = _Sample(plan, is_video=bool(conversion.source.libraries))
    for shard, spans in chosen:
        found.add(shard, spans)
    if not found.source_bytes:
        return Estimate()
    total = sum(job.size for job in conversion.jobs) if wanted is None else sum(each.bytes for each in wanted)
    scale = total / found.source_bytes
    records = round(found.records * scale) if exact is None else exact
    # The sizes of encoded images go with those of the source, the sizes of all else with their count.
    by_bytes = exact is None or (found.are_encoded and len(found.record_bytes) > len(plan.cameras))
    factor = scale if by_bytes or not found.records else records / found.records
    stored = found.stored_bytes * factor
    # A file goes to the end of a block, and has one more.
    shares = [job.size / total for job in conversion.jobs] if wanted is None else _shares(wanted)
    files = sum(ceil(stored * share / BLOCK) + 1 for share in shares) * BLOCK
    return Estimate(records, round(files + found.index_bytes * scale), found.sizes)


class _Wanted(NamedTuple):
    """An episode to convert: its number in the shard, the count of its steps, and its bytes in the source."""

    shard: SourceShard
    number: int
    steps: int
    bytes: int


def _wanted(conversion: Conversion) -> list[_Wanted] | None:
    """Return the episodes to convert, None where metadata do not tell the length of each."""
    chosen, found, listed = conversion.plan.episode_list, [], []
    for job in conversion.jobs:
        shard = job.shard
        lengths, ids = shard.lengths, shard.ids
        if len(lengths) != shard.records or (chosen is not None and not ids):
            return None
        sizes = shard.sizes or [shard.bytes * each // (sum(lengths) or 1) for each in lengths]
        numbers = [number for span in job.spans for number in range(*span)]
        found += [_Wanted(shard, number, lengths[number], sizes[number]) for number in numbers]
        listed += [chosen is None or chosen.chooses([ids[number]]) for number in numbers]
    # A list of other keys than ids chooses nothing, and then nothing is known.
    return list(compress(found, listed)) or found


def _shares(wanted: Sequence[_Wanted]) -> list[float]:
    """Return the share of each shard in the bytes of episodes."""
    sizes: Counter[tuple[str, int]] = Counter()
    for each in wanted:
        sizes[each.shard.split, each.shard.index] += each.bytes
    return [size / sizes.total() for size in sizes.values()]


def _spread(wanted: Sequence[_Wanted]) -> list[tuple[SourceShard, list[Span]]]:
    """Return some episodes from all over a dataset, by shard."""
    count = min(len(wanted), _EPISODES)
    chosen = [wanted[(2 * place + 1) * len(wanted) // (2 * count)] for place in range(count)]
    groups = [list(group) for _, group in groupby(chosen, key=lambda each: (each.shard.split, each.shard.index))]
    return [(group[0].shard, [(each.number, each.number + 1) for each in group]) for group in groups]


class _Sample:
    """Some episodes of a dataset as they would be stored.

    Args:
        is_video: Whether the source has to decode all frames before one, so that only the first record is converted.

    Attributes:
        source_bytes: Bytes of the source that they take.
        records: Count of pairs or frames.
        stored_bytes: Bytes of their records.
        index_bytes: Bytes of their rows.
        record_bytes: Different sizes of records, by camera.
        are_encoded: Whether the source has its frames as images, each encoded by itself.
        sizes: See ``Estimate``.
    """

    def __init__(self, plan: DatasetPlan, *, is_video: bool) -> None:
        self._plan, self._is_video = plan, is_video
        self.source_bytes = self.records = self.index_bytes = 0
        self.stored_bytes = 0.0
        self.record_bytes: set[tuple[str, int]] = set()
        self.are_encoded = False
        self.sizes: dict[str, str] = {}
        derived = [vector_field(name, vector).type for name, vector in plan.vectors.items()]
        self._derived_bytes = sum(getattr(kind, "list_size", 1) * 4 for kind in derived)

    def add(self, shard: SourceShard, spans: Sequence[Span]) -> None:
        """Add episodes of a shard; damaged ones are passed over."""
        plan = self._plan
        rows = PartRows(plan.features, offset=plan.offset, write_batch=self._measure)
        with shard.open(plan.wanted, spans) as reader:
            for source_file, position, num_bytes, episode in reader:
                if not isinstance(episode, Episode):
                    continue
                starts = first_steps(episode.num_steps, plan.offsets[-1])
                try:
                    each = [
                        self._mean_bytes(camera, frames, episode.num_steps)
                        for camera, frames in zip(plan.cameras, episode.cameras, strict=True)
                    ]
                except CorruptFrame:
                    continue
                self.source_bytes += num_bytes
                self.stored_bytes += len(starts) * sum(
                    len(plan.offsets) * size + _RECORD / camera.policy.gop
                    for camera, size in zip(plan.cameras, each, strict=True)
                )
                rows.add(
                    episode,
                    position,
                    source_file=source_file,
                    status="ok",
                    language=step_language(episode, plan.language, encoding=plan.language_encoding),
                    robot=plan.robot,
                    first_steps=list(starts) * len(plan.cameras),
                    cameras=np.repeat(range(len(plan.cameras)), len(starts)).tolist(),
                )
        rows.finish({name: np.zeros(rows.num_records, dtype) for name, dtype in _NO_PLACES.items()})
        self.records += rows.num_records
        self.index_bytes += rows.num_steps * self._derived_bytes

    def _measure(self, kind: TableKind, batch: pa.RecordBatch) -> None:
        self.index_bytes += batch.nbytes

    def _mean_bytes(self, camera: PlannedCamera, frames: Frames | DamagedEpisode | None, steps: int) -> float:
        """Return the mean bytes of a frame in some records of an episode, and note the sizes of frames."""
        if isinstance(frames, DamagedEpisode | None):
            return 0
        gop, rest = camera.policy.gop, iter(frames)
        records = -(-steps // gop)
        every = max(1, records if self._is_video else records // _RECORDS)
        total = count = 0
        for _ in range(0, records, every):
            read, stored = list(islice(rest, gop)), []
            for frame in read:
                self.are_encoded |= isinstance(frame, bytes)
                with suppress(CorruptFrame):
                    stored.append(camera.convert(frame))
            count += len(read)
            if stored:
                first = stored[0]
                data = first.data if first.video is None else encode_chunk(stored, camera.policy)[0]
                total += len(data or b"")
                self.record_bytes.add((camera.name, len(data or b"")))
                (height, width), (old_height, old_width) = first.size, first.source_size
                self.sizes[camera.name] = f"{height}x{width}"
                if height * old_width != width * old_height:
                    self.sizes[camera.name] += f", {_RESIZED[camera.policy.resize]} from {old_height}x{old_width}"
            elif not total:
                raise CorruptFrame("no frame of the first record can be decoded")
            # The frames between are read, and not converted.
            deque(islice(rest, (every - 1) * gop), maxlen=0)
        return total / max(1, count)
