"""Conversion of one source shard into one ArrayRecord file and its part of the index.

The output is a function of the source file and the plan alone. Files are written on a stage of the journal, closed,
reopened, checked and hashed, and only then put into place; the status of the shard is written last.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa

from convert.errors import ConvertError, CorruptFrame, DamagedEpisode, ShardError
from convert.index.derived import vector_inputs
from convert.jobs import ShardJob
from convert.journal.journal import RECORDS, Journal, piece_stem
from convert.journal.status import QuarantineEntry, ShardStatus
from convert.plan import DatasetPlan, PlannedCamera
from convert.shard.counts import DAMAGE, count_damage, total_counts
from convert.shard.images import EncodedFrame
from convert.shard.language import step_language
from convert.shard.pairs import first_steps
from convert.shard.part_rows import PartRows
from convert.shard.record_file import RecordWriter, encode_record
from convert.shard.success import episode_success
from convert.shard.video import check_sizes, encode_chunk
from convert.source.episode import Episode, SourceFrame, episode_id
from convert.source.features import SUCCESS, Feature
from convert.source.protocol import SourceEpisode, join_digests
from convert.storage.durable import FULL, describe_durably, writing
from convert.tasks.pieces import join_pieces
from stream.base.errors import FormatError
from stream.format.episode_list import OPENPI
from stream.format.manifest import FileEntry, ShardEntry
from stream.format.names import HOLE, TABLE_KINDS, TableKind
from stream.format.table import open_table
from stream.format.video import VIDEO_CODECS
from stream.storage.remote import RemoteError
from stream.storage.table_writer import TableWriter


def convert_shard(shard_job: ShardJob, dataset_plan: DatasetPlan) -> ShardStatus | None:
    """Convert one shard or piece, unless it is finished or another process is converting it.

    The process that finishes the last piece of a shard joins them to what converting the shard at once would give.

    Returns:
        The status of the shard, also of one that was finished before; that of the piece while others are missing; None
        if another process is converting or joining it, or has finished the whole dataset since.

    Raises:
        ShardError: This machine does not see the journal, the source cannot be read, the output cannot be written, or
            the source is damaged and the plan says ``on_error="fail"``.
        stream.storage.remote.RemoteError: A bucket cannot be read or written.
    """
    journal = dataset_plan.journal
    try:
        return _convert_shard(shard_job, dataset_plan, journal)
    except ConvertError as error:
        # Without locks another process may finish the whole dataset, and remove the journal, meanwhile.
        if isinstance(error.__cause__, FileNotFoundError) and not journal.exists() and _in_manifest(journal, shard_job):
            return None
        raise


def _convert_shard(shard_job: ShardJob, dataset_plan: DatasetPlan, journal: Journal) -> ShardStatus | None:
    if status := journal.status(shard_job.stem):
        return status
    if not journal.exists():
        if _in_manifest(journal, shard_job):
            return None
        raise ShardError(
            f"{dataset_plan.output}: {socket.gethostname()} finds no conversion there, though one was begun; workers "
            "and this command need an --output that all of them see, on a shared disk or in a bucket"
        )
    status = _once(
        shard_job,
        journal,
        lambda stage_folder: _ShardWriter(shard_job, dataset_plan, stage_folder, scratch=journal.scratch).run(),
    )
    if status is None or shard_job.piece is None:
        return status
    piece_statuses = [
        piece_status for piece in shard_job.cut if (piece_status := journal.status(piece_stem(shard_job.stem, *piece)))
    ]
    if len(piece_statuses) < len(shard_job.cut) or any(
        episode_range.entry.source_bytes != shard_job.shard.bytes for episode_range in piece_statuses
    ):
        return status
    try:
        joined_status = _once(
            replace(shard_job, piece=None),
            journal,
            lambda stage_folder: join_pieces(piece_statuses, journal, stage_folder),
        )
    except (ConvertError, RemoteError, OSError):
        # Without locks another process may join the pieces, and remove them, meanwhile.
        if (joined_status := journal.status(shard_job.stem)) is None:
            raise
    if joined_status is not None:
        journal.clear_pieces(shard_job.stem)
    return joined_status


def _once(shard_job: ShardJob, journal: Journal, write_files: Callable[[Path], ShardStatus]) -> ShardStatus | None:
    """Put what ``write_files`` writes to a folder into place, unless it is finished or another process is at it."""
    with journal.lock(shard_job.name) as is_locked:
        if not is_locked:
            return None
        if (status := journal.status(shard_job.name)) and status.entry.source_bytes == shard_job.shard.bytes:
            return status
        with journal.stage(shard_job.name) as stage_folder:
            status = write_files(stage_folder)
            if shard_job.entry is not None and shard_job.piece is None and shard_job.entry != status.entry:
                _check_no_worse(shard_job, shard_job.entry, status.entry, journal)
                if not shard_job.may_differ:
                    raise _other_content(shard_job, shard_job.entry, status.entry, journal)
                journal.withdraw(shard_job.stem)
            journal.place(shard_job.name, stage_folder)
        journal.finish(status)
        return status


def _check_no_worse(shard_job: ShardJob, old_entry: ShardEntry, new_entry: ShardEntry, journal: Journal) -> None:
    """Raise ShardError if the source was damaged after the existing shard was converted."""
    damage_before, damage_now = count_damage(old_entry.left_out), count_damage(new_entry.left_out)
    if damage_now > damage_before and journal.complete_files([old_entry]):
        raise ShardError(
            f"{shard_job.shard.path}: {damage_now} damaged, {damage_before} when it was converted, so the converted "
            "shard stays as it is; copy the source file again"
        )


def _other_content(shard_job: ShardJob, old_entry: ShardEntry, new_entry: ShardEntry, journal: Journal) -> ShardError:
    """Return the error about a lost shard that was made again and is not what the manifest says."""
    changed_fields = ", ".join(
        name for name in ShardEntry.model_fields if getattr(old_entry, name) != getattr(new_entry, name)
    )
    if old_entry.source_digest != new_entry.source_digest:
        reason = f"{shard_job.shard.path} is not the file that was converted; copy that file again"
    else:
        manifest = journal.manifest() or journal.withdrawn()
        versions = ", ".join(f"{name} {version}" for name, version in (manifest.versions if manifest else {}).items())
        reason = f"the same source gives other bytes here; take the versions that wrote the dataset ({versions})"
    return ShardError(
        f"{journal.output}: {shard_job.stem} was made again and differs from the manifest in {changed_fields}, so "
        f"nothing was replaced: {reason}; or accept the new shard with --redo {shard_job.stem}"
    )


def _in_manifest(journal: Journal, shard_job: ShardJob) -> bool:
    try:
        manifest = journal.manifest()
    except FormatError:
        return False
    split_entry = manifest.splits.get(shard_job.shard.split) if manifest else None
    return split_entry is not None and any(shard_entry.name == shard_job.stem for shard_entry in split_entry.shards)


class _ShardWriter:
    """The conversion of one shard to files in ``folder``, named by their kind; messages name ``scratch``."""

    def __init__(self, shard_job: ShardJob, dataset_plan: DatasetPlan, stage_folder: Path, *, scratch: Path) -> None:
        self._job = shard_job
        self._plan = dataset_plan
        self._folder = stage_folder
        self._scratch = scratch
        self._offsets = dataset_plan.offsets
        vector_paths = {
            vector_part.path for vector in dataset_plan.vectors.values() for vector_part in vector_inputs(vector)
        }
        self._vectors = [
            feature for feature in dataset_plan.features if feature.level == "step" and feature.name in vector_paths
        ]
        columns = (*dataset_plan.features, SUCCESS) if dataset_plan.success else dataset_plan.features
        self._tables = {table_kind: TableWriter(stage_folder / table_kind) for table_kind in TABLE_KINDS}
        self._rows = PartRows(columns, offset=self._offsets[-1], write_batch=self._write)
        self._left_out: Counter[str] = Counter()
        self._quarantine: list[QuarantineEntry] = []
        self._sizes: dict[str, Counter[str]] = {camera.name: Counter() for camera in dataset_plan.cameras}
        self._source_file = ""
        """File of the episode that is being written."""
        self._records: list[int] = []
        """Record of each row of the table of records."""
        self._passed = 0
        self._bytes_in = 0

    def run(self) -> ShardStatus:
        source_shard = self._job.shard
        try:
            with ExitStack() as open_tables:
                with writing(self._scratch):
                    writer = RecordWriter(self._folder / RECORDS, output=self._scratch)
                    for table in self._tables.values():
                        open_tables.enter_context(table)
                with writer, source_shard.open(self._plan.wanted, self._job.spans) as reader:
                    for source_episode in reader:
                        self._add(source_episode, writer)
                    digests = dict(reader.digests)
                with writing(self._scratch):
                    part_files = self._write_parts(writer)
                    records_file = describe_durably(self._folder / RECORDS)
        except OSError as error:
            if error.errno in FULL:  # a table that is closed writes too
                with writing(self._scratch):
                    raise
            raise ShardError(f"{error.filename or source_shard.path}: {error.strerror or error}") from error
        sizes_by_camera = {camera_name: total_counts([size_counts]) for camera_name, size_counts in self._sizes.items()}
        check_sizes(
            sizes_by_camera,
            {camera.name: camera.policy for camera in self._plan.cameras},
            dataset_name=self._job.dataset,
        )
        shard_entry = ShardEntry(
            name=self._job.stem,
            source_file=source_shard.name,
            source_bytes=source_shard.bytes,
            source_digest=join_digests([digests]),
            episodes=self._rows.num_episodes,
            steps=self._rows.num_steps,
            records=self._rows.num_records,
            paired_episodes=self._rows.paired_episodes,
            left_out=total_counts([self._left_out]),
            sizes=total_counts(sizes_by_camera.values()),
            camera_sizes=sizes_by_camera if self._plan.layout == "frames" else {},
            passed=self._passed,
            file=records_file,
        )
        return ShardStatus(
            entry=shard_entry,
            parts=part_files,
            longest=self._rows.longest,
            bytes_in=self._bytes_in,
            digests=digests,
            quarantine=tuple(self._quarantine),
            piece="" if self._job.piece is None else self._job.name,
        )

    def _write_parts(self, writer: RecordWriter) -> dict[TableKind, FileEntry]:
        """Write the part of each table and reopen it; returns its size and hash once it is on the disk."""
        self._rows.finish(
            {column_name: column_values[self._records] for column_name, column_values in writer.places().items()}
        )
        row_counts = {
            "steps": self._rows.num_steps,
            "episodes": self._rows.num_episodes,
            "records": self._rows.num_records,
        }
        for table_kind, table in self._tables.items():
            table.finish()
            try:
                open_table(self._folder / table_kind, table_kind, rows=row_counts[table_kind])
            except FormatError as error:
                raise ShardError(f"{error}, reopened after it was written; is the disk sound?") from None
        return {table_kind: describe_durably(self._folder / table_kind) for table_kind in self._tables}

    def _write(self, table_kind: TableKind, batch: pa.RecordBatch) -> None:
        with writing(self._scratch):
            self._tables[table_kind].add(batch)

    def _add(self, source_episode: SourceEpisode, writer: RecordWriter) -> None:
        position, self._source_file = source_episode.position, source_episode.source_file
        self._bytes_in += source_episode.num_bytes
        episode, status, detail = self._check(source_episode.content)
        if not self._is_chosen(episode, position):
            self._left_out["not_chosen"] += 1
            return
        if status != "ok":
            self._leave_out(status, position, detail)
        if status == "undeclared":
            return
        start_steps: list[int] = []
        cameras: list[int] = []
        instructions: list[str] = []
        robot = self._plan.robot
        if episode is not None:
            write_records = self._write_frames if self._plan.layout == "frames" else self._write_pairs
            start_steps, cameras = write_records(position, episode, writer)
            for detail in episode.spare:
                self._leave_out("spare_frames", position, detail)
            for detail in episode.dropped:
                self._leave_out("unknown_feature", position, detail)
            instructions = step_language(episode, self._plan.language, encoding=self._plan.language_encoding)
            robot = _robot(episode, self._plan.robot_feature) or robot
            if self._plan.layout == "frames" and episode.num_steps and not start_steps:
                episode, status, instructions = None, "missing_frames", []
                self._leave_out(status, position, "no frame of any camera can be decoded")
            elif self._plan.success:
                episode_columns = {**episode.episode, SUCCESS.name: episode_success(episode, self._plan.success)}
                episode = replace(episode, episode=episode_columns)
        self._rows.add(
            episode,
            position,
            source_file=source_episode.source_file,
            status=status,
            language=instructions,
            robot=robot,
            first_steps=start_steps,
            cameras=cameras,
        )

    def _is_chosen(self, episode: Episode | None, position: int) -> bool:
        """Return whether the list of episodes has an episode; an unreadable one is known by its place alone."""
        if self._plan.episode_list is None:
            return True
        episode_names = [episode_id(self._source_file, position)]
        openpi_texts = [
            column.values for feature_name in OPENPI if episode and (column := episode.episode.get(feature_name))
        ]
        if len(openpi_texts) == len(OPENPI):
            episode_names.append(
                "--".join(
                    str(openpi_text[0]) for openpi_text in openpi_texts if openpi_text is not None and len(openpi_text)
                )
            )
        return self._plan.episode_list.chooses(episode_names)

    def _check(self, episode: Episode | DamagedEpisode) -> tuple[Episode | None, str, str]:
        """Return an episode, None if it is damaged; its status; and the reason if that is not "ok"."""
        if isinstance(episode, DamagedEpisode):
            return None, episode.reason, str(episode)
        missing_names = [feature.name for feature in self._vectors if episode.steps[feature.name].values is None]
        if missing_names and episode.num_steps:
            return None, "missing_feature", f"no {', '.join(missing_names)}, a part of action or state"
        if first_steps(episode.num_steps, self._offsets[-1]):
            return episode, "ok", ""
        pair_note = "" if self._plan.layout == "frames" else f", a pair takes {self._plan.offset + 1}"
        return episode, "too_short" if episode.num_steps else "empty", f"{episode.num_steps} steps{pair_note}"

    def _write_pairs(self, position: int, episode: Episode, writer: RecordWriter) -> tuple[list[int], list[int]]:
        """Write the pairs of an episode; returns their first steps and cameras. Pairs of a corrupt frame are left out.

        Only the encoded frames of one pair and of the steps in it are in memory.
        """
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
            frame_bytes = [
                encoded_frame.data
                for frame_offset in self._offsets
                if (encoded_frame := encoded_frames[start_step + frame_offset]) is not None
            ]
            del encoded_frames[start_step]
            if len(frame_bytes) < len(self._offsets):
                self._left_out["pair_of_corrupt_frame"] += 1
                continue
            self._records.append(writer.write(encode_record(frame_bytes)))
            kept_starts.append(start_step)
        return kept_starts, [0] * len(kept_starts)

    def _write_frames(self, position: int, episode: Episode, writer: RecordWriter) -> tuple[list[int], list[int]]:
        """Write all frames of an episode, camera after camera, unless all are holes.

        Only the frames of one record are in memory.

        Returns:
            The step and the camera of each row of the table of records.
        """
        row_steps: list[int] = []
        row_cameras: list[int] = []
        only_holes = True
        for camera_number, (camera, camera_frames) in enumerate(zip(self._plan.cameras, episode.cameras, strict=True)):
            if isinstance(camera_frames, DamagedEpisode | None):
                self._leave_out("missing_camera", position, str(camera_frames or f"no {camera.feature.name}"))
                camera_frames = None
            source_frames = iter(repeat(None, episode.num_steps) if camera_frames is None else camera_frames)
            for first_step in range(0, episode.num_steps, camera.policy.gop):
                encoded_frames = self._converted(islice(source_frames, camera.policy.gop), camera, position, first_step)
                record, present_frames = _encode(encoded_frames, camera)
                if only_holes and record is not None:
                    only_holes = False
                    self._records += [writer.write(HOLE) for _ in row_steps]
                if not only_holes:
                    record_number = -1 if record is None else writer.write(record)
                    self._records += [
                        record_number if is_present else writer.write(HOLE) for is_present in present_frames
                    ]
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
            encoded_frame = (
                None
                if source_frame is None
                else self._convert(source_frame, camera, position, step, required_size=chunk_size)
            )
            chunk_size = encoded_frame.size if chunk_size is None and encoded_frame is not None else chunk_size
            yield encoded_frame

    def _convert(
        self,
        source_frame: SourceFrame | CorruptFrame,
        camera: PlannedCamera,
        position: int,
        step: int,
        *,
        required_size: tuple[int, int] | None = None,
    ) -> EncodedFrame | None:
        """Return the frame of a step as stored; None if it is corrupt, or not of the ``required_size``."""
        try:
            encoded_frame = camera.convert(source_frame)
            if required_size not in (None, encoded_frame.size):
                raise CorruptFrame(
                    f"is {_text(encoded_frame.size)}, and the chunk begins with frames of {_text(required_size)}"
                )
        except CorruptFrame as error:
            detail = f"{camera.name}: {error}" if self._plan.layout == "frames" else str(error)
            self._leave_out("corrupt_frame", position, detail, step=step)
            return None
        self._passed += encoded_frame.passed
        self._sizes[camera.name][_text(encoded_frame.size)] += 1
        return encoded_frame

    def _leave_out(self, reason: str, position: int, detail: str, *, step: int | None = None) -> None:
        if reason in DAMAGE and self._plan.on_error == "fail":
            source_path = self._job.shard.path if self._source_file == self._job.shard.name else self._source_file
            context = f"{self._job.dataset} {source_path}: episode {position}"
            context += "" if step is None else f" step {step}"
            raise ShardError(f"{context}: {reason}: {detail}; run with --on-error quarantine to leave it out")
        self._left_out[reason] += 1
        self._quarantine.append(
            QuarantineEntry(
                shard=self._job.stem,
                source_file=self._source_file,
                episode=position,
                step=step,
                reason=reason,
                detail=detail.encode("utf-8", "backslashreplace").decode(),
            )
        )


def _encode(encoded_frames: Iterator[EncodedFrame | None], camera: PlannedCamera) -> tuple[bytes | None, list[bool]]:
    """Return the record of some frames, None if all are holes; and a mask of those that are none."""
    if camera.policy.codec in VIDEO_CODECS:
        return encode_chunk(encoded_frames, camera.policy)
    (encoded_frame,) = encoded_frames
    return (None, [False]) if encoded_frame is None else (encode_record([encoded_frame.data]), [True])


def _text(frame_size: tuple[int, int] | None) -> str:
    return "" if frame_size is None else f"{frame_size[0]}x{frame_size[1]}"


def _robot(episode: Episode, feature: Feature | None) -> str:
    if feature is None:
        return ""
    values = episode.column(feature).values
    return str(values[0]) if values is not None and len(values) else ""
