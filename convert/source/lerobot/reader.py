"""Reader of consecutive episodes of a LeRobot dataset: rows of parquet files and frames of video files.

Frames of a video are counted; times only decide whether the count is plausible. Where the count is right and LeRobot
itself finds a frame for each row (within 0.0001 s), both give the same frames.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from convert.errors import DamagedEpisode, MalformedEpisode
from convert.source.episode import Column, Episode, Frames, absent_column
from convert.source.features import Feature
from convert.source.lerobot.episodes import EpisodeFiles, VideoPart
from convert.source.lerobot.files import LocalFiles, list_files
from convert.source.lerobot.info import TASK, Info
from convert.source.lerobot.parquet import DataFile, flatten_numbers, flatten_texts
from convert.source.protocol import ReadRequest, SourceEpisode

if TYPE_CHECKING:
    from convert.source.lerobot.video import VideoFile


@dataclass(kw_only=True)
class LeRobotReader:
    """A reader of episodes, see ``convert.source.protocol.EpisodeReader``.

    Where files have several episodes, rows that the file of their episode lacks are looked up in all files of ``data``.
    LeRobot's own reader finds them there. The size of the files, ``bytes_per_step``, is for estimates.
    """

    episodes: Sequence[EpisodeFiles]
    request: ReadRequest
    files: LocalFiles
    tasks: Mapping[int, str]
    info: Info
    bytes_per_step: float
    _data: DataFile | None = None
    _videos: dict[str, tuple[str, VideoFile | DamagedEpisode]] = field(default_factory=dict)

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 in hex of each file of the episodes."""
        located_files = [replace(files, data=self._data_name(files)) for files in self.episodes]
        return self.files.digests(file_names(located_files, self.request))

    def __iter__(self) -> Iterator[SourceEpisode]:
        for episode_files in self.episodes:
            try:
                content: Episode | DamagedEpisode = self._read(episode_files)
            except DamagedEpisode as error:
                content = error
            num_bytes = round(episode_files.length * self.bytes_per_step)
            yield SourceEpisode(episode_files.data, episode_files.number, num_bytes, content)

    def _read(self, episode_files: EpisodeFiles) -> Episode:
        if episode_files.fault:
            raise MalformedEpisode(episode_files.fault)
        data_file, num_steps = self._open_data(self._data_name(episode_files)), episode_files.length
        row_span = data_file.find_rows(episode_files.number, expected=num_steps)
        table = data_file.numbers(*row_span)
        row_times = np.arange(num_steps) / self.info.fps
        if "timestamp" in table.schema.names:
            context = f"{data_file.name}: episode {episode_files.number}: timestamp"
            row_times = flatten_numbers(table.column("timestamp"), np.dtype(np.float64), context, ())
            if not np.isfinite(row_times).all():
                step = np.flatnonzero(~np.isfinite(row_times))[0]
                raise MalformedEpisode(f"{context} of step {step} is {row_times[step]}, expected seconds")
        columns: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
        for feature in self.request.features:
            columns[feature.level][feature.name] = self._column(feature, table, episode_files)
        cameras: list[Frames | DamagedEpisode] = []
        extra_frames: list[str] = []
        for camera_name in (camera.name for camera in self.request.cameras):
            try:
                if camera_name in episode_files.videos:
                    cameras.append(self._frames(camera_name, episode_files, row_times, extra_frames))
                else:
                    cameras.append(data_file.pictures(camera_name, *row_span))
            except DamagedEpisode as error:
                cameras.append(error)
        faults = [camera for camera in cameras if isinstance(camera, DamagedEpisode)]
        if faults and len(faults) == len(cameras):
            raise faults[0]
        steps, values = columns["step"], columns["episode"]
        return Episode(
            num_steps=num_steps, steps=steps, episode=values, cameras=cameras, extra_frames=tuple(extra_frames)
        )

    def _open_data(self, file_name: str) -> DataFile:
        if self._data is None or self._data.name != file_name:
            self._data = None
            self._data = DataFile(self.files, file_name, self.request)
        return self._data

    def _data_name(self, episode_files: EpisodeFiles) -> str:
        """Return the name of the parquet file with the rows of an episode, or of the one that should have them."""
        with contextlib.suppress(DamagedEpisode):
            if episode_files.number in self._open_data(episode_files.data).spans:
                return episode_files.data
        return self._elsewhere.get(episode_files.number, episode_files.data)

    @cached_property
    def _elsewhere(self) -> dict[int, str]:
        """The first parquet file with rows of each episode."""
        file_by_episode: dict[int, str] = {}
        data_folder = self.info.data_path.partition("/")[0]
        data_files = list_files(self.files.folder, data_folder) if self.info.codebase_version == "v3.0" else ()
        for file_name in sorted(data_files):
            with contextlib.suppress(DamagedEpisode):
                for episode_number in DataFile(self.files, file_name, self.request).spans:
                    file_by_episode.setdefault(episode_number, file_name)
        return file_by_episode

    def _column(self, feature: Feature, table: pa.Table, episode_files: EpisodeFiles) -> Column:
        num_steps = episode_files.length
        if feature.level == "episode":
            return Column(feature=feature, values=np.array([episode_files.number]), lengths=(), rows=1)
        text_columns = self.info.texts
        column_name = text_columns.get(feature.name, feature.name)
        if column_name not in table.schema.names:
            return absent_column(feature, num_steps)
        stored_column = table.column(column_name)
        context = f"{episode_files.data}: episode {episode_files.number}: {column_name}"
        values: np.ndarray | list[str]
        if feature.name in text_columns:
            task_numbers = flatten_numbers(stored_column, np.dtype(np.int64), context, ()).tolist()
            known_tasks = self.tasks
            if feature.name != TASK:
                # An annotation that a step lacks is a negative number.
                known_tasks = {**known_tasks, **{number: "" for number in task_numbers if number < 0}}
            if unknown_tasks := sorted(set(task_numbers) - set(known_tasks)):
                label = "task" if feature.name == TASK else column_name
                fault = f"has {label} {unknown_tasks[0]}, which meta/tasks lacks"
                raise MalformedEpisode(f"{episode_files.data}: episode {episode_files.number} {fault}")
            values = [known_tasks[task_number] for task_number in task_numbers]
        elif feature.dtype == "string":
            values = flatten_texts(stored_column, context, feature.shape)
        else:
            values = flatten_numbers(stored_column, np.dtype(feature.dtype), context, feature.shape)
        return Column(feature=feature, values=values, lengths=(), rows=num_steps)

    def _frames(self, camera_name: str, files: EpisodeFiles, row_times: np.ndarray, extra_frames: list[str]) -> Frames:
        """Return the frames of a camera, and add a message to ``extra_frames`` if the video has more."""
        if not files.length:
            return ()  # LeRobot writes no video of an empty episode.
        if (part := files.video(camera_name)) is None:
            raise MalformedEpisode(str(files.videos[camera_name]))
        video = self._video(camera_name, part.name)
        numbers, num_extra = match_rows(video.times, part, row_times, fps=self.info.fps, listed_frames=video.listed)
        if num_extra:
            rows = f"the {files.length} rows, which have theirs by time"
            extra_frames.append(f"{part.name}: {num_extra} frames more than {rows}")
        if self.info.is_depth(camera_name):
            return video.depth(numbers, self.info.depth_codes(camera_name))
        return video.frames(numbers)

    def _video(self, camera_name: str, file_name: str) -> VideoFile:
        from convert.source.lerobot.video import VideoFile

        open_name, video = self._videos.get(camera_name, ("", None))
        if video is None or open_name != file_name:
            if isinstance(video, VideoFile):
                video.close()
            try:
                video = VideoFile(self.files.path(file_name), name=file_name)
            except DamagedEpisode as error:
                video = error
            self._videos[camera_name] = (file_name, video)
        if isinstance(video, DamagedEpisode):
            raise video
        return video

    def close(self) -> None:
        """Close the videos."""
        for _, video in self._videos.values():
            if not isinstance(video, DamagedEpisode):
                video.close()


def file_names(episodes: Iterable[EpisodeFiles], request: ReadRequest) -> list[str]:
    """Return the names of the files that hold the requested parts of episodes, each once."""
    names: list[str] = []
    for episode in episodes:
        video_parts = [episode.video(camera.name) for camera in request.cameras]
        names += [episode.data, *(part.name for part in video_parts if part)]
    return list(filter(None, dict.fromkeys(names)))


_TOLERANCE = 0.1
"""Most misfit between a row and its frame, in frames."""


def match_rows(
    frame_times: np.ndarray, part: VideoPart, row_times: np.ndarray, *, fps: float, listed_frames: int = 0
) -> tuple[np.ndarray, int]:
    """Return the number of each row's frame, -1 where the file lacks it, and the count of extra frames.

    Where the file has as many frames as its episodes have rows, the k-th frame belongs to the k-th row. Otherwise a row
    has the frame at its time. Then every row has to have a frame, or every frame of this time a row: anything else may
    be a shift. A file that ends elsewhere than its episodes may be shifted too.

    Args:
        frame_times: Times of all frames of the file, ascending, in seconds.
        row_times: Times of the rows in the episode, in seconds.
        listed_frames: Count of the frames that the file would have if it was not cut short.

    Raises:
        DamagedEpisode: The frames of the episode cannot be identified; the message says why.

    >>> part = VideoPart(name="front.mp4", episode=0, start=0, stop=0.3, length=3, rows=3)
    >>> match_rows(np.array([0, 0.1, 0.2]), part, np.zeros(3), fps=10)[0].tolist()
    [0, 1, 2]
    >>> match_rows(np.array([0, 0.1]), part, np.arange(3) / 10, fps=10)[0].tolist()
    [0, 1, -1]
    """
    if not part.length:
        return np.zeros(0, np.int64), 0
    tolerance = _TOLERANCE / fps
    first_frame, end_frame = 0, len(frame_times)
    fault, is_adjacent = "", True
    if len(frame_times) == part.rows:
        # One frame a row: the count decides, unless the episode starts at another time than its first frame.
        if min(abs(part.start - part.first / fps), abs(part.start - frame_times[part.first])) <= tolerance:
            return np.arange(part.first, part.first + part.length), 0
        fault = f"it begins at {part.start:.3f} s, and after {part.first} frames of others"
    elif part.length < part.rows or part.start > tolerance:
        # Several episodes share the file: only the frames between this episode's start and stop may be its frames.
        end_time = frame_times[-1] + 1 / fps if len(frame_times) else 0.0
        is_cut = abs(end_time - part.end) > tolerance and listed_frames != part.rows
        if min(part.gaps) < -tolerance or is_cut:
            fault = f"the file ends at {end_time:.3f} s, its episodes at {part.end:.3f} s, or some overlap"
        is_adjacent = max(map(abs, part.gaps)) <= tolerance
        limits = np.array([part.start, part.stop]) - tolerance
        first_frame, end_frame = np.searchsorted(frame_times, limits).tolist()
    if abs(row_times[0]) > tolerance or (np.diff(row_times) <= 2 * tolerance).any():
        fault = fault or f"timestamp goes from {row_times[0]:.3f} to {row_times[-1]:.3f} s, not from 0 upwards"
    # The first frame that is not earlier than the row is the row's frame, if it is not later either.
    expected_times = part.start + row_times
    candidates = first_frame + np.searchsorted(frame_times[first_frame:end_frame], expected_times - tolerance)
    has_frame = np.append(frame_times[:end_frame], np.inf)[candidates] <= expected_times + tolerance
    num_frames, num_matched = end_frame - first_frame, int(has_frame.sum())
    num_extra = num_frames - num_matched
    # Between neighbours that touch, the part may lack frames or have extra ones, but not both.
    is_complete = bool(has_frame.all())
    fits = is_complete and is_adjacent if num_extra else is_complete or is_adjacent
    if fault or not num_matched or not fits:
        fault = fault or f"{num_matched} of its {len(row_times)} rows have one of the {num_frames} frames at their time"
        raise DamagedEpisode(
            f"{part.name}: {len(frame_times)} frames for {part.rows} rows, so the frames of the {part.length} rows of "
            f"episode {part.episode} cannot be identified: {fault}",
            reason="unmatched_frames",
        )
    return np.where(has_frame, candidates, -1), num_extra
