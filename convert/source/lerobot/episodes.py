"""Episodes of a LeRobot dataset as its metadata list them, and the pieces that workers convert."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convert.errors import SourceError
from convert.source.lerobot.info import INFO, Info, file_name
from convert.storage.object_store import StoreFolder
from stream.storage.remote import LocalFolder

_EPISODES = "meta/episodes"
_RUN = 20_000
"""Least frames, of all cameras, of a run of episodes that have files of their own."""
_MOST = 1e15
"""Bound of the numbers of an episode, which float64 holds exactly."""


@dataclass(frozen=True, slots=True)
class EpisodeFiles:
    """One episode.

    Attributes:
        number: ``episode_index``.
        length: Count of its steps.
        data: Name of its parquet file.
        videos: Name of the video file of each camera, and the time in it at which the episode begins, in seconds.
    """

    number: int
    length: int
    data: str
    videos: Mapping[str, tuple[str, float]]


def tasks_file(info: Info) -> tuple[str, ...]:
    """Return the name of the file with the tasks; none where steps have no task."""
    if "task_index" not in info.features:
        return ()
    return ("meta/tasks.parquet" if info.codebase_version == "v3.0" else "meta/tasks.jsonl",)


def episode_files(folder: LocalFolder | StoreFolder, info: Info) -> tuple[str, ...]:
    """Return the names of the files that list the episodes, in order. Raises SourceError if there are none."""
    if info.codebase_version == "v2.1":
        return (f"{_EPISODES}.jsonl",)
    chunks = folder / _EPISODES
    listed = [f"{_EPISODES}/{chunk}/{name}" for chunk in chunks.folders() for name in sorted((chunks / chunk).sizes())]
    if not (names := tuple(name for name in listed if name.endswith(".parquet"))):
        raise SourceError(f"{chunks}: no parquet file; copy the whole folder meta again")
    return names


def read_files(folder: LocalFolder | StoreFolder, names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of metadata files by name. Raises SourceError if one is missing."""
    try:
        return {name: folder.read(name) for name in names}
    except FileNotFoundError as error:
        raise SourceError(f"{error.filename or error}: missing; copy the whole folder meta again") from None


def read_episodes(files: Mapping[str, bytes], info: Info, *, where: str) -> list[EpisodeFiles]:
    """Return all episodes in the order of their numbers.

    Raises:
        SourceError: A file is damaged, or the episodes are not those that ``info.json`` counts.
    """
    rows = sorted(
        (row for name, content in files.items() if name.startswith(_EPISODES) for row in _rows(name, content, where)),
        key=lambda row: int(row["episode_index"]),
    )
    numbers = [int(row["episode_index"]) for row in rows]
    if numbers != list(range(info.total_episodes)):
        raise SourceError(
            f"{where}: {_EPISODES} lists {len(set(numbers)):,} episodes, {INFO} counts {info.total_episodes:,} from 0; "
            "copy the whole folder meta again"
        )
    return [_episode(row, info, where) for row in rows]


def read_tasks(files: Mapping[str, bytes], *, where: str) -> dict[int, str]:
    """Return the tasks by number. Raises SourceError if their file is damaged."""
    found = {}
    for name, content in files.items():
        if name.startswith("meta/tasks"):
            for row in _rows(name, content, where):
                # The text is the index of a pandas table in v3, whose name differs.
                texts = [value for value in row.values() if isinstance(value, str)]
                found[int(row["task_index"])] = texts[0] if texts else ""
    return found


def _rows(name: str, content: bytes, where: str) -> Iterable[Mapping[str, Any]]:
    try:
        if name.endswith(".parquet"):
            file = pq.ParquetFile(io.BytesIO(content))
            # Statistics of every feature are most of the file.
            columns = [column for column in file.schema_arrow.names if not column.startswith("stats/")]
            rows: list[dict[str, Any]] = file.read(columns=columns).select(columns).to_pylist()
        else:
            rows = [json.loads(line) for line in content.decode().splitlines() if line.strip()]
        key = "task_index" if name.startswith("meta/tasks") else "episode_index"
        if any(not isinstance(row.get(key), int) for row in rows):
            raise ValueError(f"a row without {key}")
    except (pa.ArrowException, OSError, ValueError, AttributeError) as error:
        raise SourceError(f"{where}/{name}: cannot be read ({str(error)[:200]}); copy it again") from None
    return rows


def _episode(row: Mapping[str, Any], info: Info, where: str) -> EpisodeFiles:
    number, in_v3 = int(row["episode_index"]), info.codebase_version == "v3.0"

    def value(key: str, *, whole: bool = True) -> int | float:
        found = row.get(key)
        # Not >=, because NaN is refused too.
        if not isinstance(found, int | float) or not abs(found) < _MOST or (whole and (found < 0 or found % 1)):
            raise SourceError(
                f"{where}: {_EPISODES}: {key} of episode {number} is {found!r:.80}, expected a "
                f"{'whole number from 0' if whole else 'number'}; copy the whole folder meta again"
            )
        return found

    def place(of: str) -> dict[str, int]:
        if in_v3:
            return {key: int(value(f"{of}/{key}")) for key in ("chunk_index", "file_index")}
        return {"episode_chunk": number // info.chunks_size, "episode_index": number}

    videos = {}
    for camera in info.videos:
        name = file_name(info.video_path or "", where=where, video_key=camera, **place(f"videos/{camera}"))
        videos[camera] = (name, float(value(f"videos/{camera}/from_timestamp", whole=False)) if in_v3 else 0.0)
    return EpisodeFiles(number, int(value("length")), file_name(info.data_path, where=where, **place("data")), videos)


def cut_units(episodes: Sequence[EpisodeFiles], info: Info) -> Iterator[list[EpisodeFiles]]:
    """Yield the units of a split, each for one worker: consecutive episodes.

    In v3 a unit is the episodes of one video file of the camera with the most files (of one parquet file, where no
    camera has videos). So each file of this camera is in one unit. Files of the other cameras are larger: one that
    crosses the end of a unit is opened by both, which decode their own part of it. In v2.1, where each episode has its
    files, a unit is a run of episodes of at least 20,000 frames.
    """
    cameras = {camera: [episode.videos[camera][0] for episode in episodes] for camera in info.videos}
    files = max(cameras.values(), key=lambda names: len(set(names)), default=[episode.data for episode in episodes])
    least = 0 if info.codebase_version == "v3.0" else _RUN
    pictures = max(len(info.cameras), 1)
    unit: list[EpisodeFiles] = []
    for number, episode in enumerate(episodes):
        if unit and files[number] != files[number - 1] and sum(one.length for one in unit) * pictures >= least:
            yield unit
            unit = []
        unit.append(episode)
    if unit:
        yield unit
