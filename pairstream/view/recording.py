"""Recordings of episodes for Rerun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rerun as rr
import rerun.blueprint as rrb

from pairstream.view.tracks import Band, CameraTrack, Curve, Lane, Tracks
from pairstream.view.window import SampleWindow
from stream.base.errors import ArgumentError, FormatError
from stream.format.frame import as_jpeg, decode_frame
from stream.format.names import VECTORS
from stream.storage.remote import check_local

_AT_ONCE = 64
"""Frames that are read before they are sent."""
_LEGEND = 4
"""Most series whose legend does not cover their plot."""


def save(tracks: Tracks, path: Path, window: SampleWindow | None = None) -> list[str]:
    """Write a recording of an episode with a marked window, and return what was left out because it is damaged.

    A file that exists is replaced; raises ArgumentError if it cannot be written.
    """
    check_local(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ArgumentError(f"--save {path}: {'is a folder' if path.is_dir() else 'its folder does not exist'}")
    recording = rr.RecordingStream("pairstream")
    try:
        recording.save(path, default_blueprint=_blueprint(tracks, window))
        faults = _send(recording, tracks, window)
        recording.disconnect()
    except (OSError, RuntimeError) as error:
        raise ArgumentError(f"--save {path}: cannot be written ({error})") from None
    return faults


def spawn(tracks: Tracks, window: SampleWindow | None = None) -> list[str]:
    """Show an episode in Rerun's window, and return what was left out because it is damaged."""
    recording = rr.RecordingStream("pairstream")
    recording.spawn(default_blueprint=_blueprint(tracks, window))
    return _send(recording, tracks, window)


def _send(recording: rr.RecordingStream, tracks: Tracks, window: SampleWindow | None) -> list[str]:
    recording.send_recording_name(tracks.title)
    faults = list(_log(recording, tracks, window))
    recording.flush()
    return faults


def _blueprint(tracks: Tracks, window: SampleWindow | None) -> rrb.Blueprint:
    cameras = [rrb.Spatial2DView(origin=_camera_path(track), name=track.camera.name) for track in tracks.cameras]
    curves = list(tracks.curves())
    plot_views: list[rrb.Container | rrb.View] = []
    for group in VECTORS:
        group_views = [_plot(f"/{curve.name}", curve.name, len(curve.dims)) for curve in curves if curve.group == group]
        plot_views += [rrb.Tabs(*group_views, active_tab=0)] if group_views else []
    num_columns = sum(len(curve.dims) for curve in curves if curve.group == "column")
    plot_views.append(_plot("/columns", "other columns", num_columns))
    language_view, facts_view = (rrb.TextDocumentView(origin=f"/{name}", name=name) for name in ("language", "episode"))
    text_views = [language_view, rrb.StateTimelineView(origin="/texts", name="texts and flags")]
    marked_range = None if window is None else rrb.components.AbsoluteTimeRange(window.start, window.stop - 1)
    return rrb.Blueprint(
        rrb.Horizontal(
            rrb.Vertical(rrb.Grid(*cameras), facts_view, row_shares=[4, 1]),
            rrb.Vertical(*text_views, *plot_views, row_shares=[3, 6, *[8] * len(plot_views)]),
        ),
        rrb.TimePanel(timeline="step", fps=tracks.rate or 10.0, time_selection=marked_range, state="collapsed"),
        collapse_panels=True,
    )


def _plot(origin: str, plot_name: str, num_series: int) -> rrb.TimeSeriesView:
    legend = rrb.PlotLegend(visible=num_series <= _LEGEND)
    return rrb.TimeSeriesView(origin=origin, name=plot_name, plot_legend=legend)


def _camera_path(track: CameraTrack) -> str:
    return f"/cameras/{rr.escape_entity_path_part(track.camera.name)}"


def _times(tracks: Tracks, steps: np.ndarray) -> list[rr.TimeColumn]:
    """Return the timelines ``step`` and, if the dataset declares a rate, ``seconds``."""
    time_columns = [rr.TimeColumn("step", sequence=steps)]
    if tracks.rate is not None:
        time_columns.append(rr.TimeColumn("seconds", duration=steps / tracks.rate))
    return time_columns


def _log(recording: rr.RecordingStream, tracks: Tracks, window: SampleWindow | None) -> Iterator[str]:
    """Send an episode, and yield what is damaged."""
    fact_lines = [f"- {name}: {value}" for name, value in tracks.facts.items() if value not in (None, "")]
    fact_lines += [] if window is None else [f"- **{window.text}**"]
    document = "\n".join([f"**{tracks.title}**", *fact_lines])
    recording.log("/episode", rr.TextDocument(document, media_type="text/markdown"), static=True)
    for track in tracks.cameras:
        yield from _log_camera(recording, tracks, track)
    for curve in tracks.curves():
        _log_curve(recording, tracks, curve)
    for lane in tracks.lanes():
        _log_lane(recording, tracks, lane)
    if window is not None:
        _log_lane(recording, tracks, Lane("window", (Band(window.start, window.stop, window.text),)))


def _log_lane(recording: rr.RecordingStream, tracks: Tracks, lane: Lane) -> None:
    # A band that follows at once replaces the gap after the band before it.
    changes: dict[int, Any] = {}
    for band in lane.bands:
        changes |= {band.start: band.text, band.stop: None}
    changes.pop(tracks.steps, None)
    if not lane.bands:
        return
    time_columns = _times(tracks, np.array(list(changes)))
    entity_path = f"/texts/{rr.escape_entity_path_part(lane.name)}"
    recording.send_columns(entity_path, time_columns, rr.StateChange.columns(state=list(changes.values())))
    if lane.name == "language":
        documents = rr.TextDocument.columns(text=[text or "" for text in changes.values()])
        recording.send_columns("/language", time_columns, documents)


def _log_camera(recording: rr.RecordingStream, tracks: Tracks, track: CameraTrack) -> Iterator[str]:
    entity_path = _camera_path(track)
    steps = track.steps.tolist()
    for first_frame in range(0, len(steps), _AT_ONCE):
        frame_bytes: dict[int, bytes] = {}
        for step in steps[first_frame : first_frame + _AT_ONCE]:
            try:
                frame_bytes[step] = _stored(track, step)
            except (FormatError, OSError) as error:
                yield str(error)
        if not frame_bytes:
            continue
        contents, count = list(frame_bytes.values()), len(frame_bytes)
        if track.camera.is_depth:
            pixels = [_format(track, channel_datatype="U16", color_model="L")] * count
            columns = rr.DepthImage.columns(buffer=contents, format=pixels, meter=[1000.0] * count)
        elif track.camera.codec == "jpeg":
            columns = rr.EncodedImage.columns(blob=contents, media_type=["image/jpeg"] * count)
        else:
            pixels = [_format(track, channel_datatype="U8", color_model="RGB")] * count
            columns = rr.Image.columns(buffer=contents, format=pixels)
        recording.send_columns(entity_path, _times(tracks, np.array(list(frame_bytes))), columns)


def _format(track: CameraTrack, **pixels: Any) -> rr.components.ImageFormat:
    height, width = track.camera.sizes[0]
    return rr.components.ImageFormat(width=width, height=height, **pixels)


def _stored(track: CameraTrack, step: int) -> bytes:
    """Return the JPEG of a step, or the bytes of its pixels."""
    if track.camera.is_depth:
        return track.read_depth(step).tobytes()
    stored_frame = track.read(step)
    return bytes(as_jpeg(stored_frame)) if track.camera.codec == "jpeg" else decode_frame(stored_frame).tobytes()


def series_names(curve: Curve) -> list[str]:
    """Return the names of the dimensions; plain numbers follow the name of their column."""
    return [f"{curve.name}{dimension}" if dimension.startswith("[") else dimension for dimension in curve.dims]


def _log_curve(recording: rr.RecordingStream, tracks: Tracks, curve: Curve) -> None:
    path_parts = [rr.escape_entity_path_part(path_part) for path_part in curve.name.split("/")]
    entity_path = "/" + "/".join(["columns", *path_parts] if curve.group == "column" else path_parts)
    recording.log(entity_path, rr.SeriesLines(names=series_names(curve)), static=True)
    time_columns = _times(tracks, np.arange(tracks.steps))
    columns = rr.Scalars.columns(scalars=curve.values.ravel()).partition([len(curve.dims)] * tracks.steps)
    recording.send_columns(entity_path, time_columns, columns)
