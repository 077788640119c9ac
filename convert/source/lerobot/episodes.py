"""Episodes of a LeRobot dataset as its metadata list them, and the pieces that workers convert."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convert.errors import MalformedEpisode, SourceError
from convert.source.lerobot.files import Folder, list_files
from convert.source.lerobot.info import INFO, Info, file_name
from convert.source.lerobot.matching import VideoPart, share_files
from convert.source.lerobot.parquet import MOST_METADATA, check_claim

_EPISODES = "meta/episodes"
_RUN = 20_000
"""Least frames, of all cameras, of a run of episodes that have files of their own."""
_MOST = 1e15
"""Bound of the numbers of an episode, which float64 holds exactly."""
_MOST_MISSING = 100_000
"""Bound of the episodes that are listed as missing."""


@dataclass(frozen=True, slots=True)
class EpisodeFiles:
    """One episode.

    Attributes:
        number: ``episode_index``.
        length: Count of its steps.
        data: Name of its parquet file as the metadata have it, the pattern of the names where they have none.
        videos: Part of a video file for each camera, or why the episode has none.
        fault: Why the episode cannot be read, or an empty text.
    """

    number: int
    length: int
    data: str
    videos: Mapping[str, VideoPart | str]
    fault: str = ""

    def video(self, camera: str) -> VideoPart | None:
        """Return the part of a video file that has the frames of a camera, if there is one."""
        part = self.videos.get(camera)
        return part if isinstance(part, VideoPart) else None


def tasks_file(info: Info) -> tuple[str, ...]:
    """Return the name of the file with the tasks; none where no column has their numbers."""
    if not info.texts:
        return ()
    return ("meta/tasks.parquet" if info.codebase_version == "v3.0" else "meta/tasks.jsonl",)


def episode_files(folder: Folder, info: Info) -> tuple[str, ...]:
    """Return the names of the files that list the episodes, in order.

    Raises:
        SourceError: There are none, or the dataset has no episodes.
    """
    names: tuple[str, ...] = (f"{_EPISODES}.jsonl",)
    if info.codebase_version == "v3.0":
        names = tuple(name for name in sorted(list_files(folder, _EPISODES)) if name.endswith(".parquet"))
    if not info.total_episodes and all(folder.size(name) is None for name in names):
        raise SourceError(no_episodes(folder))
    if not names:
        raise SourceError(f"{folder}/{_EPISODES}: no parquet file; copy the whole folder meta again")
    return names


def no_episodes(folder: object) -> str:
    """Return the error about a dataset that was made and never recorded into."""
    return f"{folder}: has no episodes, {INFO} counts 0; record some, or name another dataset"


def read_episodes(files: Mapping[str, bytes], info: Info, *, where: str) -> list[EpisodeFiles]:
    """Return all episodes in the order of their numbers; those that ``info.json`` counts and no file lists as faults.

    Raises:
        SourceError: A file is damaged, or lists nothing of what ``info.json`` counts.
    """
    found: dict[int, EpisodeFiles] = {}
    for name, content in files.items():
        for row in _rows(name, content, where) if name.startswith(_EPISODES) else ():
            episode = _episode(row, info, where)
            if found.setdefault(episode.number, episode) != episode:
                found[episode.number] = _faulty(episode.number, f"{_EPISODES} lists it twice, differently")
    missing = [number for number in range(min(info.total_episodes, len(found) + _MOST_MISSING)) if number not in found]
    if missing and (not found or len(missing) >= _MOST_MISSING):
        raise SourceError(
            f"{where}: {_EPISODES} lists {len(found):,} episodes, {INFO} counts {info.total_episodes:,}; copy the "
            "whole folder meta again"
        )
    for number in missing:
        found[number] = _faulty(number, f"{_EPISODES} does not list it, {INFO} counts {info.total_episodes:,} episodes")
    parts = [part for each in found.values() for part in each.videos.values() if isinstance(part, VideoPart)]
    shared = share_files(parts)
    return [
        replace(
            each,
            videos={key: shared[part] if isinstance(part, VideoPart) else part for key, part in each.videos.items()},
        )
        for _, each in sorted(found.items())
    ]


def _faulty(number: int, fault: str) -> EpisodeFiles:
    return EpisodeFiles(number, 0, "", {}, f"episode {number}: {fault}")


def read_tasks(files: Mapping[str, bytes], *, where: str) -> dict[int, str]:
    """Return the tasks by number. Raises SourceError if their file is damaged."""
    found = {}
    for name, content in files.items():
        if name.startswith("meta/tasks"):
            for row in _rows(name, content, where):
                # In v3 the text may be the index of a pandas table without a name.
                texts = [value for value in (row.get("task"), *row.values()) if isinstance(value, str)]
                found[int(row["task_index"])] = texts[0] if texts else ""
    return found


def _rows(name: str, content: bytes, where: str) -> Iterable[Mapping[str, Any]]:
    try:
        if name.endswith(".parquet"):
            file = pq.ParquetFile(io.BytesIO(content))
            # Statistics of every feature are most of the file.
            columns = [column for column in file.schema_arrow.names if not column.startswith("stats/")]
            groups = range(file.metadata.num_row_groups)
            check_claim(file, columns, groups=groups, size=len(content), most=MOST_METADATA)
            rows: list[dict[str, Any]] = file.read(columns=columns).select(columns).to_pylist()
        else:
            rows = [json.loads(line) for line in content.decode().split("\n") if line.strip()]
        key = "task_index" if name.startswith("meta/tasks") else "episode_index"
        if any(not isinstance(row.get(key), int) for row in rows):
            raise ValueError(f"a row without {key}")
    except (pa.ArrowException, OSError, ValueError, KeyError, AttributeError) as error:
        raise SourceError(f"{where}/{name}: cannot be read ({str(error)[:200]}); copy it again") from None
    return rows


def _episode(row: Mapping[str, Any], info: Info, where: str) -> EpisodeFiles:
    number, in_v3 = int(row["episode_index"]), info.codebase_version == "v3.0"

    def value(key: str, *, whole: bool = True) -> int | float:
        found = row.get(key)
        # Not >=, because NaN is refused too.
        if not isinstance(found, int | float) or not abs(found) < _MOST or (whole and (found < 0 or found % 1)):
            raise MalformedEpisode(
                f"{_EPISODES}: {key} of episode {number} is {found!r:.80}, expected a "
                f"{'whole number from 0' if whole else 'number'}"
            )
        return found

    def place(of: str) -> dict[str, int]:
        if in_v3:
            return {key: int(value(f"{of}/{key}")) for key in ("chunk_index", "file_index")}
        return {"episode_chunk": number // info.chunks_size, "episode_index": number}

    def part(camera: str, length: int) -> VideoPart | str:
        key = f"videos/{camera}"
        try:
            name = file_name(info.video_path or "", where=where, video_key=camera, **place(key))
            start = float(value(f"{key}/from_timestamp", whole=False)) if in_v3 else 0.0
        except MalformedEpisode as error:
            return str(error)
        # LeRobot does not read it.
        stop = row.get(f"{key}/to_timestamp")
        stop = float(stop) if isinstance(stop, int | float) and abs(stop) < _MOST else start + length / info.fps
        return VideoPart(name=name, episode=number, start=start, stop=stop, length=length)

    try:
        length = int(value("length"))
    except MalformedEpisode as error:
        return EpisodeFiles(number, 0, "", {}, str(error))
    try:
        data = file_name(info.data_path, where=where, **place("data"))
    except MalformedEpisode:
        data = info.data_path
    return EpisodeFiles(number, length, data, {camera: part(camera, length) for camera in info.videos})


def cut_units(episodes: Sequence[EpisodeFiles], info: Info) -> Iterator[list[EpisodeFiles]]:
    """Yield the units of a split, each for one worker: consecutive episodes.

    In v3 a unit is the episodes of one video file of the camera with the most files (of one parquet file, where no
    camera has videos). So each file of this camera is in one unit. Files of the other cameras are larger: one that
    crosses the end of a unit is opened by both, which decode their own part of it. In v2.1, where each episode has its
    files, a unit is a run of episodes of at least 20,000 frames.
    """
    cameras = [[part.name if (part := each.video(camera)) else "" for each in episodes] for camera in info.videos]
    files = max(cameras, key=lambda names: len(set(names)), default=[each.data for each in episodes])
    least = 0 if info.codebase_version == "v3.0" else _RUN
    pictures = max(len(info.cameras), 1)
    unit: list[EpisodeFiles] = []
    last = ""
    for episode, name in zip(episodes, files, strict=True):
        # An episode without a file stays with the one before.
        if unit and name and name != last and sum(one.length for one in unit) * pictures >= least:
            yield unit
            unit = []
        unit.append(episode)
        last = name or last
    if unit:
        yield unit
