"""One source shard becomes one ArrayRecord file and its part of the index.

Everything here is a function of the source file and the plan, so the output is the same whoever runs it, how often, and
in whatever order. Files are written where the journal says, closed, reopened, checked and hashed, and only then put
into place; the status of the shard is written last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute  # noqa: F401  (The first shard of a worker would import it otherwise.)

from convert.errors import ConvertError, CorruptFrame, DamagedRecord, MalformedEpisode, ShardError, UsageError
from convert.index.tables import write_part
from convert.journal.journal import RECORDS, FileKind
from convert.journal.remote import AnyJournal, open_journal
from convert.journal.status import QuarantineEntry, ShardStatus
from convert.plan import DatasetPlan, ShardJob
from convert.shard.images import EncodedFrame, convert_frame
from convert.shard.language import step_language
from convert.shard.pairs import first_steps, frame_offsets
from convert.shard.part_rows import PartRows
from convert.shard.record_file import RecordWriter
from convert.source.features import Feature
from convert.source.rlds import Episode, EpisodeParser
from convert.source.tfrecord import TFRecordFile
from convert.storage.durable import describe_durably, writing
from stream.format.manifest import FileEntry, ShardEntry
from stream.format.names import TABLE_KINDS, encode_record
from stream.format.table import open_table
from stream.storage.errors import FormatError
from stream.storage.remote import RemoteError

DAMAGE = ("unreadable", "malformed", "missing_feature", "corrupt_frame", "undeclared")
"""Reasons that mean damaged input; ``empty`` and ``too_short`` episodes are healthy and give no pair."""


def convert_shard(job: ShardJob, plan: DatasetPlan) -> ShardStatus | None:
    """Convert one shard, unless it is finished or another process is converting it.

    Returns:
        The status, also of a shard that was finished before; None if another process is converting it, or has
        finished the whole dataset since.

    Raises:
        ShardError: The source cannot be read, the output cannot be written, or the source is damaged and the plan says
            ``on_error="fail"``.
    """
    journal = open_journal(plan.output, plan.staging)
    try:
        return _convert_shard(job, plan, journal)
    except RemoteError as error:
        raise (UsageError if error.refused else ShardError)(str(error)) from error
    except ConvertError as error:
        # Without locks another process may finish the whole dataset, and remove the journal, meanwhile.
        if isinstance(error.__cause__, FileNotFoundError) and not journal.exists() and _in_manifest(journal, job):
            return None
        raise


def _convert_shard(job: ShardJob, plan: DatasetPlan, journal: AnyJournal) -> ShardStatus | None:
    if status := journal.status(job.stem):
        return status
    if not journal.exists():
        if _in_manifest(journal, job):
            return None
        journal.make()
    with journal.lock(job.stem) as mine:
        if not mine:
            return None
        if status := journal.status(job.stem):
            return status
        with journal.staged(job.stem) as files:
            status = _ShardWriter(job, plan, files, workplace=journal.workplace).run()
            if job.entry is not None and job.entry != status.entry:
                _check_no_worse(job, job.entry, status.entry, journal)
                journal.withdraw()
            journal.place(job.stem, files)
        journal.finish(status)
        return status


def count_damage(left_out: Mapping[str, int]) -> int:
    """Return how much was left out because it was damaged."""
    return sum(left_out.get(reason, 0) for reason in DAMAGE)


def _check_no_worse(job: ShardJob, old: ShardEntry, new: ShardEntry, journal: AnyJournal) -> None:
    """Raise ShardError if a shard that exists would be replaced by one of a source that was damaged since."""
    before, now = count_damage(old.left_out), count_damage(new.left_out)
    if now > before and journal.has_file(old):
        raise ShardError(
            f"{job.shard.path}: {now} damaged, {before} when it was converted, so the converted shard stays as it is; "
            "copy the source file again"
        )


def _in_manifest(journal: AnyJournal, job: ShardJob) -> bool:
    try:
        manifest = journal.manifest()
    except FormatError:
        return False
    split = manifest.splits.get(job.shard.split) if manifest else None
    return split is not None and any(shard.name == job.stem for shard in split.shards)


class _ShardWriter:
    """The state of converting one shard."""

    def __init__(self, job: ShardJob, plan: DatasetPlan, files: Mapping[FileKind, Path], *, workplace: Path) -> None:
        """``files``: where to write, by kind. ``workplace``: their folder, to name in messages."""
        self._job = job
        self._plan = plan
        self._workplace = workplace
        self._temporary = files
        self._offsets = frame_offsets(plan.frames, plan.offset)
        extra = (*plan.language, *((plan.robot_feature,) if plan.robot_feature else ()))
        self._parser = EpisodeParser(plan.camera, dict.fromkeys((*plan.features, *extra)))
        vectors = {part.path for part in (*plan.action, *plan.state)}
        self._vectors = [feature for feature in plan.features if feature.level == "step" and feature.name in vectors]
        self._rows = PartRows(plan.features)
        self._left_out: Counter[str] = Counter()
        self._quarantine: list[QuarantineEntry] = []
        self._sizes: Counter[str] = Counter()
        self._passed = 0
        self._bytes_in = 0

    def run(self) -> ShardStatus:
        shard = self._job.shard
        try:
            digest, places = self._convert()
            with writing(self._workplace):
                for kind, table in self._rows.tables(places).items():
                    write_part(self._temporary[kind], table)
                parts = {kind: self._describe(kind) for kind in TABLE_KINDS}
                file = self._describe(RECORDS)
        except ConvertError:
            raise
        except OSError as error:
            raise ShardError(f"{shard.path}: {error.strerror or error}") from error
        entry = ShardEntry(
            name=self._job.stem,
            source_file=shard.name,
            source_bytes=shard.bytes,
            source_digest=digest,
            episodes=self._rows.num_episodes,
            steps=self._rows.num_steps,
            records=self._rows.num_records,
            paired_episodes=self._rows.paired_episodes,
            left_out=dict(sorted(self._left_out.items())),
            sizes=dict(sorted(self._sizes.items())),
            passed=self._passed,
            file=file,
        )
        return ShardStatus(
            entry=entry,
            parts=parts,
            longest=self._rows.longest,
            bytes_in=self._bytes_in,
            quarantine=tuple(self._quarantine),
        )

    def _convert(self) -> tuple[str, dict[str, np.ndarray]]:
        """Write the records; returns the digest of the source and the locations of the records."""
        with writing(self._workplace):
            writer = RecordWriter(self._temporary[RECORDS], output=self._workplace)
        with writer, self._job.shard.open() as file:
            records = TFRecordFile(file, name=self._job.shard.name, size=self._job.shard.bytes)
            for position, item in wanted_records(self._job, records):
                self._add(position, item, writer)
            digest = records.digest
        with writing(self._workplace):
            return digest, writer.places()

    def _add(self, position: int, item: bytes | DamagedRecord | None, writer: RecordWriter) -> None:
        if item is None:
            declared = self._job.shard.records
            self._leave_out("undeclared", position, f"the file goes on after its {declared} declared records")
            return
        if isinstance(item, DamagedRecord):
            self._leave_out("unreadable", position, str(item))
            self._add_episode(position, "unreadable", None, ())
            return
        self._bytes_in += len(item)
        try:
            episode = self._parser.parse(item)
        except MalformedEpisode as error:
            self._leave_out("malformed", position, str(error))
            self._add_episode(position, "malformed", None, ())
            return
        missing = [feature.name for feature in self._vectors if episode.steps[feature.name].values is None]
        if missing and episode.num_steps:
            self._leave_out("missing_feature", position, f"no {', '.join(missing)}, a part of action or state")
            self._add_episode(position, "missing_feature", None, ())
            return
        status = "ok"
        starts = first_steps(episode.num_steps, self._plan.offset)
        if not starts:
            status = "too_short" if episode.num_steps else "empty"
            self._leave_out(
                status, position, f"{episode.num_steps} steps, a pair takes {self._plan.offset + 1}", damage=False
            )
        frames = self._convert_frames(position, episode, starts)
        kept = []
        for start in starts:
            chosen = [frames[start + offset] for offset in self._offsets]
            whole = [frame.data for frame in chosen if frame is not None]
            if len(whole) < len(chosen):
                self._left_out["pair_of_corrupt_frame"] += 1
                continue
            writer.write(encode_record(whole))
            kept.append(start)
        self._add_episode(position, status, episode, kept)

    def _convert_frames(self, position: int, episode: Episode, starts: range) -> dict[int, EncodedFrame | None]:
        frames: dict[int, EncodedFrame | None] = {}
        for step in sorted({start + offset for start in starts for offset in self._offsets}):
            try:
                frame = convert_frame(episode.frames[step], self._plan.policy, channels=self._plan.channels)
            except CorruptFrame as error:
                frames[step] = None
                self._leave_out("corrupt_frame", position, str(error), step=step)
                continue
            frames[step] = frame
            self._passed += frame.passed
            self._sizes[f"{frame.size[0]}x{frame.size[1]}"] += 1
        return frames

    def _add_episode(self, position: int, status: str, episode: Episode | None, starts: Sequence[int]) -> None:
        language: list[str] = []
        robot = self._plan.robot
        if episode is not None:
            language = step_language(episode, self._plan.language, encoding=self._plan.language_encoding)
            robot = _robot(episode, self._plan.robot_feature) or robot
        self._rows.add(
            episode,
            source_file=self._job.shard.name,
            position=position,
            status=status,
            language=language,
            robot=robot,
            starts=starts,
            offset=self._plan.offset,
        )

    def _leave_out(
        self, reason: str, position: int, detail: str, *, step: int | None = None, damage: bool = True
    ) -> None:
        shard = self._job.shard
        if damage and self._plan.on_error == "fail":
            where = f"{self._plan.dataset} {shard.path}: episode {position}" + (
                f" step {step}" if step is not None else ""
            )
            raise ShardError(f"{where}: {reason}: {detail}; run with --on-error quarantine to leave it out")
        self._left_out[reason] += 1
        self._quarantine.append(
            QuarantineEntry(
                shard=self._job.stem, source_file=shard.name, episode=position, step=step, reason=reason, detail=detail
            )
        )

    def _describe(self, kind: FileKind) -> FileEntry:
        """Reopen a file that was written, compare its rows, and return its size and hash once it is on the disk."""
        path = self._temporary[kind]
        rows = {
            "episodes": self._rows.num_episodes,
            "steps": self._rows.num_steps,
            "records": self._rows.num_records,
        }
        if kind != "arrayrecord":
            try:
                open_table(path, kind, rows=rows[kind])
            except FormatError as error:
                raise ShardError(f"{error}, reopened after it was written; is the disk sound?") from None
        return describe_durably(path)


def wanted_records(job: ShardJob, records: TFRecordFile) -> Iterator[tuple[int, bytes | DamagedRecord | None]]:
    """Yield the number and content of every wanted record of a source file.

    Records that the file is too damaged or too short for come as ``DamagedRecord``. None stands for all that goes on
    after the declared records.
    """
    declared = job.shard.records
    last = max(stop for _, stop in job.spans)
    damage = None
    position = 0
    for item in records:
        if position >= declared:
            yield position, None
            break
        if isinstance(item, DamagedRecord) and item.rest:
            damage = str(item)
            break
        if _covers(job.spans, position):
            yield position, item
        position += 1
        if position >= last < declared:
            break
    damage = damage or f"{job.shard.name}: ends after {position} of its {declared} declared records"
    for missing in range(position, last):
        if _covers(job.spans, missing):
            yield missing, DamagedRecord(damage, position=missing, rest=True)


def _covers(spans: Sequence[tuple[int, int]], position: int) -> bool:
    return any(start <= position < stop for start, stop in spans)


def _robot(episode: Episode, feature: Feature | None) -> str:
    if feature is None:
        return ""
    column = (episode.steps if feature.level == "step" else episode.episode)[feature.name]
    values = column.values
    return str(values[0]) if values is not None and len(values) else ""
