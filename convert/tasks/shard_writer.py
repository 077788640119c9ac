"""Writing of the files of one shard: its ArrayRecord file, and its part of each table of the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa

from convert.errors import CorruptFrame, DamagedEpisode, ShardError
from convert.jobs import ShardJob
from convert.journal.journal import RECORDS
from convert.journal.status import ShardStatus
from convert.plan import DatasetPlan, PlannedCamera
from convert.shard.counts import total_counts
from convert.shard.images import EncodedFrame
from convert.shard.language import step_language
from convert.shard.pairs import first_steps
from convert.shard.part_rows import PartRows
from convert.shard.record_file import RecordWriter, encode_record
from convert.shard.success import episode_success
from convert.shard.video import check_sizes, encode_chunk
from convert.source.episode import Episode, SourceFrame
from convert.source.features import SUCCESS
from convert.source.protocol import SourceEpisode, join_digests
from convert.storage.durable import FULL, describe_durably, writing
from convert.tasks.left_out import EpisodeCheck, LeftOut
from stream.base.errors import FormatError
from stream.format.manifest import ShardEntry
from stream.format.names import HOLE, TABLE_KINDS, TableKind
from stream.format.table import open_table
from stream.format.video import VIDEO_CODECS
from stream.storage.table_writer import TableWriter


def write_shard(job: ShardJob, plan: DatasetPlan, scratch: Path, stage_folder: Path) -> ShardStatus:
    """Write the files of a shard or piece to ``stage_folder``, each named by its kind, and return its status.

    Messages about the disk name ``scratch``. Raises ShardError if the source cannot be read, the output cannot be
    written, or damage has to fail.
    """
    shard_writer = _ShardWriter(job, plan, stage_folder, scratch=scratch)
    try:
        with ExitStack() as open_tables:
            with writing(scratch):
                record_writer = RecordWriter(stage_folder / RECORDS, output=scratch)
                for table in shard_writer.tables.values():
                    open_tables.enter_context(table)
            with record_writer, job.shard.open(plan.wanted, job.spans) as reader:
                for source_episode in reader:
                    shard_writer.add(source_episode, record_writer)
                digests = dict(reader.digests)
            with writing(scratch):
                return shard_writer.finish(record_writer, digests)
    except OSError as error:
        if error.errno in FULL:  # a table that is closed writes too
            with writing(scratch):
                raise
        raise ShardError(f"{error.filename or job.shard.path}: {error.strerror or error}") from error


class _ShardWriter:
    """A writer of the episodes of one shard: records, and rows of its part of the index."""

    def __init__(self, job: ShardJob, plan: DatasetPlan, stage_folder: Path, *, scratch: Path) -> None:
        self._job = job
        self._plan = plan
        self._folder = stage_folder
        self._scratch = scratch
        self._offsets = plan.offsets
        self._check = EpisodeCheck(plan)
        columns = (*plan.features, SUCCESS) if plan.success else plan.features
        self.tables = {kind: TableWriter(stage_folder / kind) for kind in TABLE_KINDS}
        self._rows = PartRows(columns, offset=self._offsets[-1], write_batch=self._write)
        self._left_out = LeftOut(job, fails=plan.on_error == "fail")
        self._sizes: dict[str, Counter[str]] = {camera.name: Counter() for camera in plan.cameras}
        self._records: list[int] = []
        """Record of each row of the table of records."""
        self._passed = 0
        self._bytes_in = 0

    def _write(self, kind: TableKind, batch: pa.RecordBatch) -> None:
        with writing(self._scratch):
            self.tables[kind].add(batch)

    def add(self, source_episode: SourceEpisode, writer: RecordWriter) -> None:
        """Convert an episode, unless it is left out."""
        position, source_file = source_episode.position, source_episode.source_file
        self._left_out.source_file = source_file
        self._bytes_in += source_episode.num_bytes
        episode, status, detail = self._check.examine(source_episode.content)
        if not self._check.is_chosen(episode, source_file, position):
            self._left_out.counts["not_chosen"] += 1
            return
        if status != "ok":
            self._left_out.add(status, position, detail)
        if status == "undeclared":
            return
        start_steps, cameras, instructions = list[int](), list[int](), list[str]()
        robot = self._plan.robot
        if episode is not None:
            write_records = self._write_frames if self._plan.layout == "frames" else self._write_pairs
            start_steps, cameras = write_records(position, episode, writer)
            for detail in episode.extra_frames:
                self._left_out.add("spare_frames", position, detail)
            for detail in episode.dropped:
                self._left_out.add("unknown_feature", position, detail)
            instructions = step_language(episode, self._plan.language, encoding=self._plan.language_encoding)
            if (feature := self._plan.robot_feature) and (values := episode.column(feature).values) is not None:
                robot = next(map(str, values), "") or robot
            if self._plan.layout == "frames" and episode.num_steps and not start_steps:
                episode, status, instructions = None, "missing_frames", []
                self._left_out.add(status, position, "no frame of any camera can be decoded")
            elif self._plan.success:
                success = {SUCCESS.name: episode_success(episode, self._plan.success)}
                episode = replace(episode, episode={**episode.episode, **success})
        columns: dict[str, Any] = {"status": status, "language": instructions, "robot": robot, "cameras": cameras}
        self._rows.add(episode, position, source_file=source_file, first_steps=start_steps, **columns)

    def _write_pairs(self, position: int, episode: Episode, writer: RecordWriter) -> tuple[list[int], list[int]]:
        """Write the pairs of an episode without a corrupt frame, one in memory; returns their first steps, cameras."""
        start_steps = first_steps(episode.num_steps, self._offsets[-1])
        stored_steps = {start_step + frame_offset for start_step in start_steps for frame_offset in self._offsets}
        source_frames = enumerate(episode.frames)
        encoded_frames: dict[int, Any] = {}
        kept_starts = []
        for start_step in start_steps:
            while start_step + self._offsets[-1] not in encoded_frames:
                step, frame = next(source_frames)
                if step in stored_steps:
                    encoded_frames[step] = self._convert(frame, self._plan.cameras[0], position, step)
            pair_frames = [encoded_frames[start_step + frame_offset] for frame_offset in self._offsets]
            del encoded_frames[start_step]
            if None in pair_frames:
                self._left_out.counts["pair_of_corrupt_frame"] += 1
                continue
            self._records.append(writer.write(encode_record([frame.data for frame in pair_frames])))
            kept_starts.append(start_step)
        return kept_starts, [0] * len(kept_starts)

    def _write_frames(self, position: int, episode: Episode, writer: RecordWriter) -> tuple[list[int], list[int]]:
        """Write all frames of an episode, camera after camera, unless all are holes; one record is in memory.

        Returns the step and the camera of each row of the table of records.
        """
        row_steps: list[int] = []
        row_cameras: list[int] = []
        only_holes = True
        for camera_number, (camera, camera_frames) in enumerate(zip(self._plan.cameras, episode.cameras, strict=True)):
            if isinstance(camera_frames, DamagedEpisode | None):
                self._left_out.add("missing_camera", position, str(camera_frames or f"no {camera.feature.name}"))
                camera_frames = None
            source_frames = iter(repeat(None, episode.num_steps) if camera_frames is None else camera_frames)
            for first_step in range(0, episode.num_steps, camera.policy.gop):
                encoded_frames = self._converted(islice(source_frames, camera.policy.gop), camera, position, first_step)
                record, present_frames = _encode(encoded_frames, camera)
                if only_holes and record is not None:
                    only_holes = False
                    self._records += [writer.write(HOLE) for _ in row_steps]
                if not only_holes:
                    number = -1 if record is None else writer.write(record)
                    self._records += [number if is_present else writer.write(HOLE) for is_present in present_frames]
                row_steps += range(first_step, first_step + len(present_frames))
                row_cameras += [camera_number] * len(present_frames)
        return ([], []) if only_holes else (row_steps, row_cameras)

    def _converted(
        self,
        source_frames: Iterable[SourceFrame | CorruptFrame | None],
        camera: PlannedCamera,
        position: int,
        first_step: int,
    ) -> Iterator[EncodedFrame | None]:
        """Yield the frames of a record as they are stored, all of one size, None for a hole."""
        chunk_size = None
        for step, source_frame in enumerate(source_frames, first_step):
            encoded_frame = self._convert(source_frame, camera, position, step, required_size=chunk_size)
            chunk_size = encoded_frame.size if chunk_size is None and encoded_frame is not None else chunk_size
            yield encoded_frame

    def _convert(
        self,
        source_frame: SourceFrame | CorruptFrame | None,
        camera: PlannedCamera,
        position: int,
        step: int,
        *,
        required_size: tuple[int, int] | None = None,
    ) -> EncodedFrame | None:
        """Return the frame of a step as stored; None for a hole, or if corrupt or not of the ``required_size``."""
        if source_frame is None:
            return None
        try:
            encoded_frame = camera.convert(source_frame)
            size = "{}x{}".format(*encoded_frame.size)
            if required_size is not None and required_size != encoded_frame.size:
                raise CorruptFrame("is {}, and the chunk begins with frames of {}x{}".format(size, *required_size))
        except CorruptFrame as error:
            detail = f"{camera.name}: {error}" if self._plan.layout == "frames" else str(error)
            self._left_out.add("corrupt_frame", position, detail, step=step)
            return None
        self._passed += encoded_frame.passed
        self._sizes[camera.name][size] += 1
        return encoded_frame

    def finish(self, writer: RecordWriter, digests: dict[str, str]) -> ShardStatus:
        """Write the part of each table and reopen it; return the status of the shard once its files are on the disk."""
        self._rows.finish({column: values[self._records] for column, values in writer.locations().items()})
        for kind, table in self.tables.items():
            table.finish()
            try:
                open_table(self._folder / kind, kind, rows=getattr(self._rows, f"num_{kind}"))
            except FormatError as error:
                raise ShardError(f"{error}, reopened after it was written; is the disk sound?") from None
        shard = self._job.shard
        sizes_by_camera = {name: total_counts([size_counts]) for name, size_counts in self._sizes.items()}
        policies = {camera.name: camera.policy for camera in self._plan.cameras}
        check_sizes(sizes_by_camera, policies, dataset_name=self._job.dataset)
        entry = ShardEntry(
            name=self._job.stem,
            source_file=shard.name,
            source_bytes=shard.bytes,
            source_digest=join_digests([digests]),
            episodes=self._rows.num_episodes,
            steps=self._rows.num_steps,
            records=self._rows.num_records,
            paired_episodes=self._rows.paired_episodes,
            left_out=total_counts([self._left_out.counts]),
            sizes=total_counts(sizes_by_camera.values()),
            camera_sizes=sizes_by_camera if self._plan.layout == "frames" else {},
            passed=self._passed,
            file=describe_durably(self._folder / RECORDS),
        )
        return ShardStatus(
            entry=entry,
            parts={kind: describe_durably(self._folder / kind) for kind in self.tables},
            longest=self._rows.longest,
            bytes_in=self._bytes_in,
            digests=digests,
            quarantine=tuple(self._left_out.quarantine),
            piece="" if self._job.piece is None else self._job.name,
        )


def _encode(encoded_frames: Iterator[EncodedFrame | None], camera: PlannedCamera) -> tuple[bytes | None, list[bool]]:
    """Return the record of some frames, None if all are holes; and a mask of those that are none."""
    if camera.policy.codec in VIDEO_CODECS:
        return encode_chunk(encoded_frames, camera.policy)
    (encoded_frame,) = encoded_frames
    return (None, [False]) if encoded_frame is None else (encode_record([encoded_frame.data]), [True])
