"""Conversion of one source shard into one ArrayRecord file and its part of the index.

The output is a function of the source file and the plan alone. Files are written on a stage of the journal, closed,
reopened, checked and hashed, and only then put into place; the status of the shard is written last.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from convert.shard.counts import DAMAGE, total_counts
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
from stream.base.errors import FormatError, StreamError
from stream.format.episode_list import OPENPI
from stream.format.manifest import FileEntry, ShardEntry
from stream.format.names import HOLE, TABLE_KINDS, TableKind
from stream.format.table import open_table
from stream.format.video import VIDEO_CODECS
from stream.storage.table_writer import TableWriter


def convert_shard(job: ShardJob, plan: DatasetPlan) -> ShardStatus | None:
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
    journal = plan.journal
    try:
        return _convert_shard(job, plan, journal)
    except ConvertError as error:
        # Without locks another process may finish the whole dataset, and remove the journal, meanwhile.
        if isinstance(error.__cause__, FileNotFoundError) and not journal.exists() and _in_manifest(journal, job):
            return None
        raise


def _convert_shard(job: ShardJob, plan: DatasetPlan, journal: Journal) -> ShardStatus | None:
    if status := journal.status(job.stem):
        return status
    if not journal.exists():
        if _in_manifest(journal, job):
            return None
        raise ShardError(
            f"{plan.output}: {socket.gethostname()} finds no conversion there, though one was begun; workers and this "
            "command need an --output that all of them see, on a shared disk or in a bucket"
        )
    status = _once(job, journal, lambda folder: _ShardWriter(job, plan, folder, scratch=journal.scratch).run())
    if status is None or job.piece is None:
        return status
    pieces = [found for piece in job.cut if (found := journal.status(piece_stem(job.stem, *piece)))]
    if len(pieces) < len(job.cut) or any(piece.entry.source_bytes != job.shard.bytes for piece in pieces):
        return status
    try:
        joined = _once(replace(job, piece=None), journal, lambda folder: join_pieces(pieces, journal, folder))
    except (StreamError, OSError):
        # Without locks another process may join the pieces, and remove them, meanwhile.
        if (joined := journal.status(job.stem)) is None:
            raise
    if joined is not None:
        journal.clear_pieces(job.stem)
    return joined


def _once(job: ShardJob, journal: Journal, make: Callable[[Path], ShardStatus]) -> ShardStatus | None:
    """Put what ``make`` writes to a folder into place, unless it is finished or another process is at it."""
    with journal.lock(job.name) as mine:
        if not mine:
            return None
        if (status := journal.status(job.name)) and status.entry.source_bytes == job.shard.bytes:
            return status
        with journal.stage(job.name) as folder:
            status = make(folder)
            if job.entry is not None and job.piece is None and job.entry != status.entry:
                _check_no_worse(job, job.entry, status.entry, journal)
                if not job.may_differ:
                    raise _other_content(job, job.entry, status.entry, journal)
                journal.withdraw(job.stem)
            journal.place(job.name, folder)
        journal.finish(status)
        return status


def count_damage(left_out: Mapping[str, int]) -> int:
    """Return how much was left out because it was damaged."""
    return sum(left_out.get(reason, 0) for reason in DAMAGE)


def _check_no_worse(job: ShardJob, old: ShardEntry, new: ShardEntry, journal: Journal) -> None:
    """Raise ShardError if the source was damaged after the existing shard was converted."""
    before, now = count_damage(old.left_out), count_damage(new.left_out)
    if now > before and journal.complete_files([old]):
        raise ShardError(
            f"{job.shard.path}: {now} damaged, {before} when it was converted, so the converted shard stays as it is; "
            "copy the source file again"
        )


def _other_content(job: ShardJob, old: ShardEntry, new: ShardEntry, journal: Journal) -> ShardError:
    """Return the error about a lost shard that was made again and is not what the manifest says."""
    fields = ", ".join(name for name in ShardEntry.model_fields if getattr(old, name) != getattr(new, name))
    if old.source_digest != new.source_digest:
        why = f"{job.shard.path} is not the file that was converted; copy that file again"
    else:
        manifest = journal.manifest() or journal.withdrawn()
        versions = ", ".join(f"{name} {version}" for name, version in (manifest.versions if manifest else {}).items())
        why = f"the same source gives other bytes here; take the versions that wrote the dataset ({versions})"
    return ShardError(
        f"{journal.output}: {job.stem} was made again and differs from the manifest in {fields}, so nothing was "
        f"replaced: {why}; or accept the new shard with --redo {job.stem}"
    )


def _in_manifest(journal: Journal, job: ShardJob) -> bool:
    try:
        manifest = journal.manifest()
    except FormatError:
        return False
    split = manifest.splits.get(job.shard.split) if manifest else None
    return split is not None and any(shard.name == job.stem for shard in split.shards)


class _ShardWriter:
    """The conversion of one shard to files in ``folder``, named by their kind; messages name ``scratch``."""

    def __init__(self, job: ShardJob, plan: DatasetPlan, folder: Path, *, scratch: Path) -> None:
        self._job = job
        self._plan = plan
        self._folder = folder
        self._scratch = scratch
        self._offsets = plan.offsets
        vectors = {part.path for vector in plan.vectors.values() for part in vector_inputs(vector)}
        self._vectors = [feature for feature in plan.features if feature.level == "step" and feature.name in vectors]
        columns = (*plan.features, SUCCESS) if plan.success else plan.features
        self._tables = {kind: TableWriter(folder / kind) for kind in TABLE_KINDS}
        self._rows = PartRows(columns, offset=self._offsets[-1], write=self._write)
        self._left_out: Counter[str] = Counter()
        self._quarantine: list[QuarantineEntry] = []
        self._sizes: dict[str, Counter[str]] = {camera.name: Counter() for camera in plan.cameras}
        self._source_file = ""
        """File of the episode that is being written."""
        self._records: list[int] = []
        """Record of each row of the table of records."""
        self._passed = 0
        self._bytes_in = 0

    def run(self) -> ShardStatus:
        shard = self._job.shard
        try:
            with ExitStack() as tables:
                with writing(self._scratch):
                    writer = RecordWriter(self._folder / RECORDS, output=self._scratch)
                    for table in self._tables.values():
                        tables.enter_context(table)
                with writer, shard.open(self._plan.wanted, self._job.spans) as reader:
                    for found in reader:
                        self._add(found, writer)
                    digests = dict(reader.digests)
                with writing(self._scratch):
                    parts = self._write_parts(writer)
                    records_file = describe_durably(self._folder / RECORDS)
        except OSError as error:
            if error.errno in FULL:  # a table that is closed writes too
                with writing(self._scratch):
                    raise
            raise ShardError(f"{error.filename or shard.path}: {error.strerror or error}") from error
        sizes = {name: total_counts([counts]) for name, counts in self._sizes.items()}
        check_sizes(sizes, {camera.name: camera.policy for camera in self._plan.cameras}, dataset=self._job.dataset)
        entry = ShardEntry(
            name=self._job.stem,
            source_file=shard.name,
            source_bytes=shard.bytes,
            source_digest=join_digests([digests]),
            episodes=self._rows.num_episodes,
            steps=self._rows.num_steps,
            records=self._rows.num_records,
            paired_episodes=self._rows.paired_episodes,
            left_out=total_counts([self._left_out]),
            sizes=total_counts(sizes.values()),
            camera_sizes=sizes if self._plan.layout == "frames" else {},
            passed=self._passed,
            file=records_file,
        )
        return ShardStatus(
            entry=entry,
            parts=parts,
            longest=self._rows.longest,
            bytes_in=self._bytes_in,
            digests=digests,
            quarantine=tuple(self._quarantine),
            piece="" if self._job.piece is None else self._job.name,
        )

    def _write_parts(self, writer: RecordWriter) -> dict[TableKind, FileEntry]:
        """Write the part of each table and reopen it; returns its size and hash once it is on the disk."""
        self._rows.finish({name: values[self._records] for name, values in writer.places().items()})
        rows = {"steps": self._rows.num_steps, "episodes": self._rows.num_episodes, "records": self._rows.num_records}
        for kind, table in self._tables.items():
            table.finish()
            try:
                open_table(self._folder / kind, kind, rows=rows[kind])
            except FormatError as error:
                raise ShardError(f"{error}, reopened after it was written; is the disk sound?") from None
        return {kind: describe_durably(self._folder / kind) for kind in self._tables}

    def _write(self, kind: TableKind, batch: pa.RecordBatch) -> None:
        with writing(self._scratch):
            self._tables[kind].add(batch)

    def _add(self, found: SourceEpisode, writer: RecordWriter) -> None:
        position, self._source_file = found.position, found.source_file
        self._bytes_in += found.num_bytes
        episode, status, detail = self._check(found.content)
        if not self._is_chosen(episode, position):
            self._left_out["not_chosen"] += 1
            return
        if status != "ok":
            self._leave_out(status, position, detail)
        if status == "undeclared":
            return
        starts: list[int] = []
        cameras: list[int] = []
        language: list[str] = []
        robot = self._plan.robot
        if episode is not None:
            write = self._write_frames if self._plan.layout == "frames" else self._write_pairs
            starts, cameras = write(position, episode, writer)
            for detail in episode.spare:
                self._leave_out("spare_frames", position, detail)
            for detail in episode.dropped:
                self._leave_out("unknown_feature", position, detail)
            language = step_language(episode, self._plan.language, encoding=self._plan.language_encoding)
            robot = _robot(episode, self._plan.robot_feature) or robot
            if self._plan.layout == "frames" and episode.num_steps and not starts:
                episode, status, language = None, "missing_frames", []
                self._leave_out(status, position, "no frame of any camera can be decoded")
            elif self._plan.success:
                told = {**episode.episode, SUCCESS.name: episode_success(episode, self._plan.success)}
                episode = replace(episode, episode=told)
        self._rows.add(
            episode,
            position,
            source_file=found.source_file,
            status=status,
            language=language,
            robot=robot,
            starts=starts,
            cameras=cameras,
        )

    def _is_chosen(self, episode: Episode | None, position: int) -> bool:
        """Return whether the list of episodes has an episode; an unreadable one is known by its place alone."""
        if self._plan.episode_list is None:
            return True
        names = [episode_id(self._source_file, position)]
        texts = [column.values for name in OPENPI if episode and (column := episode.episode.get(name))]
        if len(texts) == len(OPENPI):
            names.append("--".join(str(text[0]) for text in texts if text is not None and len(text)))
        return self._plan.episode_list.chooses(names)

    def _check(self, episode: Episode | DamagedEpisode) -> tuple[Episode | None, str, str]:
        """Return an episode, None if it is damaged; its status; and the reason if that is not "ok"."""
        if isinstance(episode, DamagedEpisode):
            return None, episode.reason, str(episode)
        missing = [feature.name for feature in self._vectors if episode.steps[feature.name].values is None]
        if missing and episode.num_steps:
            return None, "missing_feature", f"no {', '.join(missing)}, a part of action or state"
        if first_steps(episode.num_steps, self._offsets[-1]):
            return episode, "ok", ""
        takes = "" if self._plan.layout == "frames" else f", a pair takes {self._plan.offset + 1}"
        return episode, "too_short" if episode.num_steps else "empty", f"{episode.num_steps} steps{takes}"

    def _write_pairs(self, position: int, episode: Episode, writer: RecordWriter) -> tuple[list[int], list[int]]:
        """Write the pairs of an episode; returns their first steps and cameras. Pairs of a corrupt frame are left out.

        Only the encoded frames of one pair and of the steps in it are in memory.
        """
        starts = first_steps(episode.num_steps, self._offsets[-1])
        used = {start + offset for start in starts for offset in self._offsets}
        source = enumerate(episode.frames)
        frames: dict[int, Any] = {}
        kept = []
        for start in starts:
            while start + self._offsets[-1] not in frames:
                step, frame = next(source)
                if step in used:
                    frames[step] = self._convert(frame, self._plan.cameras[0], position, step)
            data = [found.data for offset in self._offsets if (found := frames[start + offset]) is not None]
            del frames[start]
            if len(data) < len(self._offsets):
                self._left_out["pair_of_corrupt_frame"] += 1
                continue
            self._records.append(writer.write(encode_record(data)))
            kept.append(start)
        return kept, [0] * len(kept)

    def _write_frames(self, position: int, episode: Episode, writer: RecordWriter) -> tuple[list[int], list[int]]:
        """Write all frames of an episode, camera after camera, unless all are holes.

        Only the frames of one record are in memory.

        Returns:
            The step and the camera of each row of the table of records.
        """
        steps: list[int] = []
        cameras: list[int] = []
        only_holes = True
        for number, (camera, frames) in enumerate(zip(self._plan.cameras, episode.cameras, strict=True)):
            if isinstance(frames, DamagedEpisode | None):
                self._leave_out("missing_camera", position, str(frames or f"no {camera.feature.name}"))
                frames = None
            rest = iter(repeat(None, episode.num_steps) if frames is None else frames)
            for step in range(0, episode.num_steps, camera.policy.gop):
                found = self._converted(islice(rest, camera.policy.gop), camera, position, step)
                record, held = _encode(found, camera)
                if only_holes and record is not None:
                    only_holes = False
                    self._records += [writer.write(HOLE) for _ in steps]
                if not only_holes:
                    stored = -1 if record is None else writer.write(record)
                    self._records += [stored if is_held else writer.write(HOLE) for is_held in held]
                steps += range(step, step + len(held))
                cameras += [number] * len(held)
        return ([], []) if only_holes else (steps, cameras)

    def _converted(
        self, frames: Iterable[SourceFrame | CorruptFrame | None], camera: PlannedCamera, position: int, first: int
    ) -> Iterator[EncodedFrame | None]:
        """Yield the frames of a record as they are stored, all of one size, None for a hole."""
        size = None
        for step, raw in enumerate(frames, first):
            frame = None if raw is None else self._convert(raw, camera, position, step, size=size)
            size = frame.size if size is None and frame is not None else size
            yield frame

    def _convert(
        self,
        raw: SourceFrame | CorruptFrame,
        camera: PlannedCamera,
        position: int,
        step: int,
        *,
        size: tuple[int, int] | None = None,
    ) -> EncodedFrame | None:
        """Return the frame of a step as it is stored, None if it is corrupt, or has another size than ``size``."""
        try:
            frame = camera.convert(raw)
            if size not in (None, frame.size):
                raise CorruptFrame(f"is {_text(frame.size)}, and the chunk begins with frames of {_text(size)}")
        except CorruptFrame as error:
            detail = f"{camera.name}: {error}" if self._plan.layout == "frames" else str(error)
            self._leave_out("corrupt_frame", position, detail, step=step)
            return None
        self._passed += frame.passed
        self._sizes[camera.name][_text(frame.size)] += 1
        return frame

    def _leave_out(self, reason: str, position: int, detail: str, *, step: int | None = None) -> None:
        if reason in DAMAGE and self._plan.on_error == "fail":
            path = self._job.shard.path if self._source_file == self._job.shard.name else self._source_file
            where = f"{self._job.dataset} {path}: episode {position}"
            where += "" if step is None else f" step {step}"
            raise ShardError(f"{where}: {reason}: {detail}; run with --on-error quarantine to leave it out")
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


def _encode(frames: Iterator[EncodedFrame | None], camera: PlannedCamera) -> tuple[bytes | None, list[bool]]:
    """Return the record of some frames, None if all are holes; and a mask of those that are none."""
    if camera.policy.codec in VIDEO_CODECS:
        return encode_chunk(frames, camera.policy)
    (frame,) = frames
    return (None, [False]) if frame is None else (encode_record([frame.data]), [True])


def _text(size: tuple[int, int] | None) -> str:
    return "" if size is None else f"{size[0]}x{size[1]}"


def _robot(episode: Episode, feature: Feature | None) -> str:
    if feature is None:
        return ""
    values = episode.column(feature).values
    return str(values[0]) if values is not None and len(values) else ""
