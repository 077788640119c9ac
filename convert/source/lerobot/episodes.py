"""Episodes of a LeRobot dataset as its metadata list them, and the units that workers convert."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convert.errors import MalformedEpisode, SourceError
from convert.source.lerobot.files import Folder, list_files
from convert.source.lerobot.info import INFO, Info, file_name
from convert.source.lerobot.parquet import MOST_METADATA, check_claim

_EPISODES = "meta/episodes"
_MIN_UNIT_FRAMES = 20_000
"""Least frames, of all cameras, of a unit of episodes that each have separate files."""
_MAX_NUMBER = 1e15
"""Bound of the numbers of an episode, which float64 holds exactly."""
_MAX_MISSING = 100_000
"""Bound of the episodes that are listed as missing."""


@dataclass(frozen=True, slots=True)
class EpisodeFiles:
    """One episode.

    Attributes:
        number: ``episode_index``.
        length: Count of its steps.
        data: Name of its parquet file according to the metadata, or the pattern of such names.
        videos: Part of a video file for each camera, or why the episode has none.
        fault: Why the episode cannot be read, or an empty text.
    """

    number: int
    length: int
    data: str
    videos: Mapping[str, VideoPart | str]
    fault: str = ""

    def video(self, camera_name: str) -> VideoPart | None:
        """Return the part of a video file that has the frames of a camera, if there is one."""
        video_part = self.videos.get(camera_name)
        return video_part if isinstance(video_part, VideoPart) else None


def tasks_file(info: Info) -> tuple[str, ...]:
    """Return the name of the file with the tasks; none where no column has their numbers."""
    ending = "parquet" if info.codebase_version == "v3.0" else "jsonl"
    return (f"meta/tasks.{ending}",) if info.texts else ()


def episode_files(folder: Folder, info: Info) -> tuple[str, ...]:
    """Return the names of the files that list the episodes, in order; SourceError if there are none, or no episodes."""
    file_names: tuple[str, ...] = (f"{_EPISODES}.jsonl",)
    if info.codebase_version == "v3.0":
        file_names = tuple(name for name in sorted(list_files(folder, _EPISODES)) if name.endswith(".parquet"))
    if not info.total_episodes and all(folder.size(file_name) is None for file_name in file_names):
        raise SourceError(no_episodes(folder))
    if not file_names:
        raise SourceError(f"{folder}/{_EPISODES}: no parquet file; copy the whole folder meta again")
    return file_names


def no_episodes(folder: object) -> str:
    """Return the error about a dataset that was made and never recorded into."""
    return f"{folder}: has no episodes, {INFO} counts 0; record some, or name another dataset"


def read_episodes(content_by_file: Mapping[str, bytes], info: Info, *, context: str) -> list[EpisodeFiles]:
    """Return all episodes in the order of their numbers; an episode that no file lists has a fault.

    Damaged files, and files that list next to nothing of what ``info.json`` counts, raise SourceError.
    """
    episode_by_number: dict[int, EpisodeFiles] = {}
    for name, content in content_by_file.items():
        for row in _rows(name, content, context) if name.startswith(_EPISODES) else ():
            episode = _episode(row, info, context)
            if episode_by_number.setdefault(episode.number, episode) != episode:
                episode_by_number[episode.number] = _faulty(episode.number, f"{_EPISODES} lists it twice, differently")
    expected_numbers = range(min(info.total_episodes, len(episode_by_number) + _MAX_MISSING))
    unlisted = [number for number in expected_numbers if number not in episode_by_number]
    if unlisted and (not episode_by_number or len(unlisted) >= _MAX_MISSING):
        counts = f"lists {len(episode_by_number):,} episodes, {INFO} counts {info.total_episodes:,}"
        raise SourceError(f"{context}: {_EPISODES} {counts}; copy the whole folder meta again")
    fault = f"{_EPISODES} does not list it, {INFO} counts {info.total_episodes:,} episodes"
    episode_by_number |= {number: _faulty(number, fault) for number in unlisted}
    parts: list[VideoPart] = []
    for episode in episode_by_number.values():
        parts += [part for part in episode.videos.values() if isinstance(part, VideoPart)]
    complete_parts = share_files(parts)
    episodes = []
    for _, episode in sorted(episode_by_number.items()):
        videos = {name: complete_parts.get(part, part) for name, part in episode.videos.items()}
        episodes.append(replace(episode, videos=videos))
    return episodes


def _faulty(episode_number: int, fault: str) -> EpisodeFiles:
    return EpisodeFiles(episode_number, 0, "", {}, f"episode {episode_number}: {fault}")


def read_tasks(content_by_file: Mapping[str, bytes], *, context: str) -> dict[int, str]:
    """Return the tasks by number. Raises SourceError if their file is damaged."""
    task_by_number = {}
    for name, content in content_by_file.items():
        if name.startswith("meta/tasks"):
            for row in _rows(name, content, context):
                # In v3 the text may be the index of a pandas table without a name.
                row_texts = [value for value in (row.get("task"), *row.values()) if isinstance(value, str)]
                task_by_number[int(row["task_index"])] = row_texts[0] if row_texts else ""
    return task_by_number


def _rows(metadata_file: str, content: bytes, context: str) -> Iterable[Mapping[str, Any]]:
    try:
        if metadata_file.endswith(".parquet"):
            parquet_file = pq.ParquetFile(io.BytesIO(content))
            # Statistics of every feature are most of the file.
            columns = [column for column in parquet_file.schema_arrow.names if not column.startswith("stats/")]
            row_groups = range(parquet_file.metadata.num_row_groups)
            check_claim(parquet_file, columns, groups=row_groups, file_size=len(content), limit=MOST_METADATA)
            rows: list[dict[str, Any]] = parquet_file.read(columns=columns).select(columns).to_pylist()
        else:
            rows = [json.loads(line) for line in content.decode().split("\n") if line.strip()]
        index_column = "task_index" if metadata_file.startswith("meta/tasks") else "episode_index"
        if any(not isinstance(row.get(index_column), int) for row in rows):
            raise ValueError(f"a row without {index_column}")
    except (pa.ArrowException, OSError, ValueError, KeyError, AttributeError) as error:
        raise SourceError(f"{context}/{metadata_file}: cannot be read ({str(error)[:200]}); copy it again") from None
    return rows


def _episode(row: Mapping[str, Any], info: Info, context: str) -> EpisodeFiles:
    episode_number, in_v3 = int(row["episode_index"]), info.codebase_version == "v3.0"

    def read_number(column: str, *, is_integer: bool = True) -> int | float:
        value = row.get(column)
        # NaN fails each comparison.
        if (
            isinstance(value, int | float)
            and abs(value) < _MAX_NUMBER
            and not (is_integer and (value < 0 or value % 1))
        ):
            return value
        value_text = f"{column} of episode {episode_number} is {value!r:.80}"
        expected = "whole number from 0" if is_integer else "number"
        raise MalformedEpisode(f"{_EPISODES}: {value_text}, expected a {expected}")

    def file_fields(group: str) -> dict[str, int]:
        if in_v3:
            return {column: int(read_number(f"{group}/{column}")) for column in ("chunk_index", "file_index")}
        return {"episode_chunk": episode_number // info.chunks_size, "episode_index": episode_number}

    def find_part(camera_name: str, length: int) -> VideoPart | str:
        prefix = f"videos/{camera_name}"
        try:
            video_file = file_name(info.video_path or "", context=context, video_key=camera_name, **file_fields(prefix))
            start = float(read_number(f"{prefix}/from_timestamp", is_integer=False)) if in_v3 else 0.0
        except MalformedEpisode as error:
            return str(error)
        # LeRobot does not read the end of an episode, so it may be missing.
        stop_time = row.get(f"{prefix}/to_timestamp")
        if not isinstance(stop_time, int | float) or not abs(stop_time) < _MAX_NUMBER:
            stop_time = start + length / info.fps
        return VideoPart(name=video_file, episode=episode_number, start=start, stop=float(stop_time), length=length)

    try:
        length = int(read_number("length"))
    except MalformedEpisode as error:
        return EpisodeFiles(episode_number, 0, "", {}, str(error))
    try:
        data_file = file_name(info.data_path, context=context, **file_fields("data"))
    except MalformedEpisode:
        data_file = info.data_path
    return EpisodeFiles(episode_number, length, data_file, {name: find_part(name, length) for name in info.videos})


def cut_units(episodes: Sequence[EpisodeFiles], info: Info) -> Iterator[list[EpisodeFiles]]:
    """Yield the units of a split, each for one worker: consecutive episodes.

    In v3 a unit holds the episodes of one video file of the camera with the most files, or without videos of one
    parquet file. Two workers open a file of another camera that crosses the end of a unit, and decode different parts.
    In v2.1, where each episode has separate files, a unit is a run of episodes of at least 20,000 frames.
    """
    files_by_camera = []
    for camera_name in info.videos:
        video_parts = [episode.video(camera_name) for episode in episodes]
        files_by_camera.append([video_part.name if video_part else "" for video_part in video_parts])
    data_files = [episode.data for episode in episodes]
    unit_files = max(files_by_camera, key=lambda file_names: len(set(file_names)), default=data_files)
    min_frames = 0 if info.codebase_version == "v3.0" else _MIN_UNIT_FRAMES
    num_cameras = max(len(info.cameras), 1)
    unit: list[EpisodeFiles] = []
    last_file, num_steps = "", 0
    for episode, episode_file in zip(episodes, unit_files, strict=True):
        # An episode without a file stays with the one before.
        if unit and episode_file not in ("", last_file) and num_steps * num_cameras >= min_frames:
            yield unit
            unit, num_steps = [], 0
        unit.append(episode)
        num_steps += episode.length
        last_file = episode_file or last_file
    if unit:
        yield unit


@dataclass(frozen=True, slots=True)
class VideoPart:
    """The part of a video file that has the frames of one episode.

    Attributes:
        name: Name of the file.
        episode: Number of the episode.
        start, stop: ``from_timestamp`` and ``to_timestamp``, in seconds.
        length: Count of its rows.
        first: Count of the rows of the episodes before it in the file.
        rows: Count of the rows of all episodes of the file.
        end: ``to_timestamp`` of the last episode of the file.
        gaps: Seconds to the episode before (or the start of the file) and to the one after; negative if they overlap.
    """

    name: str
    episode: int
    start: float
    stop: float
    length: int
    first: int = 0
    rows: int = 0
    end: float = 0.0
    gaps: tuple[float, ...] = ()


def share_files(parts: Iterable[VideoPart]) -> dict[VideoPart | str, VideoPart]:
    """Return each part together with what it has to know of the other parts of its file, which ``start`` orders."""
    parts_by_file: defaultdict[str, list[VideoPart]] = defaultdict(list)
    for part in sorted(parts, key=lambda part: (part.name, part.start, part.stop)):
        parts_by_file[part.name].append(part)
    completed: dict[VideoPart | str, VideoPart] = {}
    for file_parts in parts_by_file.values():
        gaps = [following.start - preceding.stop for preceding, following in pairwise(file_parts)]
        edges = (file_parts[0].start, *gaps, 0.0)
        first_rows = np.cumsum([0, *(part.length for part in file_parts)]).tolist()
        end = max(part.stop for part in file_parts)
        for part, first, both_gaps in zip(file_parts, first_rows, pairwise(edges), strict=False):
            completed[part] = replace(part, first=first, rows=first_rows[-1], end=end, gaps=both_gaps)
    return completed
