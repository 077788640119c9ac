"""One source shard becomes the files of one output shard.

Everything here is a function of the source file and the plan, so the output is the same whoever runs it, how often, and
in whatever order. Files are written where the journal says, closed, reopened, checked and hashed, and only then put
into place; the status of the shard is written last.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute  # The first shard of a worker would import it otherwise.

from convert.errors import ConvertError, CorruptFrame, DamagedRecord, MalformedEpisode, ShardError, UsageError
from convert.features import Feature
from convert.images import EncodedFrame, convert_frame
from convert.journal import QuarantineEntry, ShardStatus, writing
from convert.language import step_language
from convert.pairs import first_steps, frame_offsets
from convert.plan import DatasetPlan, ShardJob
from convert.record_file import RecordWriter, count_rows
from convert.remote_journal import AnyJournal, open_journal
from convert.rlds import Column, Episode, EpisodeParser
from convert.sidecars import arrow_array, arrow_field, write_sidecar
from convert.tfrecord import TFRecordFile
from stream.format import (
    EPISODE_FIELDS,
    FILE_KINDS,
    RECORD_FIELDS,
    RECORDS_SCHEMA,
    STEP_FIELDS,
    FormatError,
    encode_record,
)
from stream.manifest import FileEntry, ShardEntry, describe_file
from stream.remote import RemoteError

DAMAGE = ("unreadable", "malformed", "corrupt_frame", "undeclared")
"""Reasons that mean damaged input; ``empty`` and ``too_short`` episodes are healthy and give no pair."""


def convert_shard(job: ShardJob, plan: DatasetPlan) -> ShardStatus | None:
    """Convert one shard, unless it is finished or another process is at it.

    Returns:
        The status, also of a shard that was finished before; None where another process is converting it, or has
        finished the whole dataset since.

    Raises:
        ShardError: the source cannot be read, the output cannot be written, or the source is damaged and the plan says
            ``on_error="fail"``.
    """
    try:
        return _convert_shard(job, plan)
    except RemoteError as error:
        raise (UsageError if error.refused else ShardError)(str(error)) from error


def _convert_shard(job: ShardJob, plan: DatasetPlan) -> ShardStatus | None:
    journal = open_journal(plan.output, plan.staging)
    if status := journal.status(job.stem, job.shard.split):
        return status
    if not journal.exists():
        if _in_manifest(journal, job):
            return None
        journal.make()
    with journal.lock(job.stem) as mine:
        if not mine:
            return None
        if status := journal.status(job.stem, job.shard.split):
            return status
        with journal.staged(job.stem) as files:
            status = _ShardWriter(job, plan, files, workplace=journal.workplace).run()
            journal.place(job.stem, job.shard.split, files)
        journal.finish(status)
        return status


def _in_manifest(journal: AnyJournal, job: ShardJob) -> bool:
    try:
        manifest = journal.manifest()
    except FormatError:
        return False
    split = manifest.splits.get(job.shard.split) if manifest else None
    return split is not None and any(shard.name == job.stem for shard in split.shards)


@dataclass
class _Rows:
    """What the sidecars will hold, episode by episode."""

    records: list[np.ndarray] = field(default_factory=list)
    places: dict[str, np.ndarray] = field(default_factory=dict)
    steps: list[dict[str, Column]] = field(default_factory=list)
    episodes: list[dict[str, Column]] = field(default_factory=list)
    step_language: list[str] = field(default_factory=list)
    heads: list[tuple[str, str, int, str, int, int, int, int, str, str]] = field(default_factory=list)
    num_steps: int = 0
    num_records: int = 0


class _ShardWriter:
    """The state of converting one shard."""

    def __init__(self, job: ShardJob, plan: DatasetPlan, files: Mapping[str, Path], *, workplace: Path) -> None:
        """``files``: where to write, by kind. ``workplace``: their folder, to name in messages."""
        self._job = job
        self._plan = plan
        self._workplace = workplace
        self._temporary = files
        self._offsets = frame_offsets(plan.frames, plan.offset)
        extra = (*plan.language, *((plan.robot_feature,) if plan.robot_feature else ()))
        self._parser = EpisodeParser(plan.camera, dict.fromkeys((*plan.features, *extra)))
        self._rows = _Rows()
        self._left_out: Counter[str] = Counter()
        self._quarantine: list[QuarantineEntry] = []
        self._sizes: Counter[str] = Counter()
        self._frames: Counter[bool] = Counter()
        self._bytes_in = 0

    def run(self) -> ShardStatus:
        shard = self._job.shard
        try:
            digest = self._convert()
            with writing(self._workplace):
                self._write_sidecars()
                files = {kind: self._check(kind) for kind in FILE_KINDS}
        except ConvertError:
            raise
        except OSError as error:
            raise ShardError(f"{shard.path}: {error.strerror or error}") from error
        entry = ShardEntry(
            name=self._job.stem,
            source_file=shard.name,
            source_bytes=shard.bytes,
            source_digest=digest,
            episodes=len(self._rows.heads),
            steps=self._rows.num_steps,
            records=self._rows.num_records,
            paired_episodes=sum(head[6] > 0 for head in self._rows.heads),
            left_out=dict(sorted(self._left_out.items())),
            files=files,
        )
        return ShardStatus(
            entry=entry,
            spans=self._job.spans,
            sizes=dict(sorted(self._sizes.items())),
            passed=self._frames[True],
            transcoded=self._frames[False],
            bytes_in=self._bytes_in,
            quarantine=tuple(self._quarantine),
        )

    def _convert(self) -> str:
        with writing(self._workplace):
            writer = RecordWriter(self._temporary["arrayrecord"], output=self._workplace)
        with writer, self._job.shard.open() as file:
            records = TFRecordFile(file, name=self._job.shard.name, size=self._job.shard.bytes)
            for position, item in self._wanted(records):
                self._add(position, item, writer)
            digest = records.digest
        with writing(self._workplace):
            self._rows.places = writer.places()
        return digest

    def _wanted(self, records: TFRecordFile) -> Iterator[tuple[int, bytes | DamagedRecord]]:
        """Yield every wanted record once: as read, or as damaged where the file is, ends early or goes on too long."""
        declared = self._job.shard.records
        last = max(stop for _, stop in self._job.spans)
        damage = None
        position = 0
        for item in records:
            if position >= declared:
                self._leave_out("undeclared", position, f"the file goes on after its {declared} declared records")
                break
            if isinstance(item, DamagedRecord) and item.rest:
                damage = str(item)
                break
            if _covers(self._job.spans, position):
                yield position, item
            position += 1
            if position >= last < declared:
                break
        damage = damage or f"{self._job.shard.name}: ends after {position} of its {declared} declared records"
        for missing in range(position, last):
            if _covers(self._job.spans, missing):
                yield missing, DamagedRecord(damage, position=missing, rest=True)

    def _add(self, position: int, item: bytes | DamagedRecord, writer: RecordWriter) -> None:
        if isinstance(item, DamagedRecord):
            self._leave_out("unreadable", position, str(item))
            self._add_episode(position, "unreadable", None, 0)
            return
        self._bytes_in += len(item)
        try:
            episode = self._parser.parse(item)
        except MalformedEpisode as error:
            self._leave_out("malformed", position, str(error))
            self._add_episode(position, "malformed", None, 0)
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
        count = len(self._rows.heads)
        rows = np.empty((len(kept), len(RECORD_FIELDS)), np.int64)
        rows[:, 0] = count
        rows[:, 1] = kept
        rows[:, 2] = self._plan.offset
        rows[:, 3] = self._rows.num_steps + rows[:, 1]
        rows[:, 4] = len(self._offsets)
        self._rows.records.append(rows)
        self._add_episode(position, status, episode, len(kept))

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
            self._frames[frame.passed] += 1
            self._sizes[f"{frame.size[0]}x{frame.size[1]}"] += 1
        return frames

    def _add_episode(self, position: int, status: str, episode: Episode | None, num_records: int) -> None:
        rows = self._rows
        steps = 0 if episode is None else episode.num_steps
        language: list[str] = []
        robot = self._plan.robot
        if episode is not None:
            language = step_language(episode, self._plan.language, encoding=self._plan.language_encoding)
            robot = _robot(episode, self._plan.robot_feature) or robot
        name = self._job.shard.name
        spoken = next((text for text in language if text), "")
        rows.heads.append(
            (
                f"{name}__{position}",
                name,
                position,
                status,
                steps,
                rows.num_steps,
                num_records,
                rows.num_records,
                spoken,
                robot,
            )
        )
        # By level, because a step and its episode may have a feature of the same name.
        empty = {
            level: {feature.name: _absent(feature) for feature in self._plan.features if feature.level == level}
            for level in ("step", "episode")
        }
        rows.steps.append({**empty["step"], **episode.steps} if episode else empty["step"])
        rows.episodes.append({**empty["episode"], **episode.episode} if episode else empty["episode"])
        rows.step_language += language
        rows.num_steps += steps
        rows.num_records += num_records

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

    def _write_sidecars(self) -> None:
        rows = self._rows
        index = np.concatenate(rows.records) if rows.records else np.empty((0, len(RECORD_FIELDS)), np.int64)
        records = [pa.array(index[:, i]).cast(kind.type) for i, kind in enumerate(RECORD_FIELDS)]
        records += map(pa.array, rows.places.values())
        write_sidecar(self._temporary["records"], pa.Table.from_arrays(records, schema=RECORDS_SCHEMA))

        lengths = np.array([head[4] for head in rows.heads], np.int64)
        own = [
            pa.array(np.repeat(np.arange(len(lengths)), lengths), pa.int32()),
            pa.array(np.concatenate([np.arange(n) for n in lengths]) if len(lengths) else [], pa.int32()),
            pa.array(rows.step_language, pa.string()).dictionary_encode(),
        ]
        features = [feature for feature in self._plan.features if feature.level == "step"]
        self._write_features("steps", STEP_FIELDS, own, features, rows.steps)

        heads = list(zip(*rows.heads, strict=True)) if rows.heads else [()] * len(EPISODE_FIELDS)
        own = [pa.array(column, kind.type) for column, kind in zip(heads, EPISODE_FIELDS, strict=True)]
        features = [feature for feature in self._plan.features if feature.level == "episode"]
        self._write_features("episodes", EPISODE_FIELDS, own, features, rows.episodes)

    def _write_features(
        self,
        kind: str,
        fields: Sequence[pa.Field],
        own: list[pa.Array],
        features: Sequence[Feature],
        columns: Sequence[dict[str, Column]],
    ) -> None:
        arrays = own + [arrow_array(feature, [row[feature.name] for row in columns]) for feature in features]
        names = {entry.name for entry in fields}
        more = [arrow_field(feature) for feature in features]
        more = [entry.with_name(f"{entry.name}_") if entry.name in names else entry for entry in more]
        table = pa.Table.from_arrays(arrays, schema=pa.schema([*fields, *more]))
        write_sidecar(self._temporary[kind], table)

    def _check(self, kind: str) -> FileEntry:
        """Reopen a file that was written, compare its rows, and return its size and hash once it is on the disk."""
        path = self._temporary[kind]
        expected = {
            "arrayrecord": self._rows.num_records,
            "records": self._rows.num_records,
            "steps": self._rows.num_steps,
            "episodes": len(self._rows.heads),
        }[kind]
        found = count_rows(path, kind)
        if found != expected:
            raise ShardError(f"{path}: wrote {expected} rows, reopened it has {found}; is the disk sound?")
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return describe_file(path, kind)


def _covers(spans: Sequence[tuple[int, int]], position: int) -> bool:
    return any(start <= position < stop for start, stop in spans)


def _absent(feature: Feature) -> Column:
    return Column(
        feature=feature,
        values=None,
        lengths=tuple(
            np.zeros(1 if feature.level == "episode" and level == 0 else 0, np.int64)
            for level in range(len(feature.sequences))
        ),
        rows=1 if feature.level == "episode" else 0,
    )


def _robot(episode: Episode, feature: Feature | None) -> str:
    if feature is None:
        return ""
    column = (episode.steps if feature.level == "step" else episode.episode)[feature.name]
    values = column.values
    return str(values[0]) if values is not None and len(values) else ""
