"""A recording holds the bytes of the frames and the right values, as Rerun's own reader finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rerun", reason="needs the extra view")
from rerun.chunk import RrdReader

from pairstream.view.recording import save, series_names
from tests.pairstream.view.recorded import read_recording
from tests.pairstream.view.test_tracks import tracks_of


@pytest.mark.parametrize("root_name", ["oxe_root", "frames_root"])
def test_rerun_reads_the_bytes_of_the_frames_and_the_values(
    root_name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tracks = tracks_of(request.getfixturevalue(root_name), "droid", 1)
    assert save(tracks, tmp_path / "e.rrd") == []
    recorded = read_recording(tmp_path / "e.rrd")
    for track in tracks.cameras:
        camera = recorded[f"/cameras/{track.camera.name}"]
        assert camera["step"] == track.steps.tolist()
        blobs = [bytes(blob) for (blob,) in camera["EncodedImage:blob"]]
        stored: list[Any] = [track.read(step) for step in track.steps.tolist()]
        assert blobs == stored
        assert {kind for (kind,) in camera["EncodedImage:media_type"]} == {"image/jpeg"}
    for curve in tracks.curves():
        entity = recorded[f"/{curve.name}" if curve.group != "column" else f"/columns/{curve.name}"]
        np.testing.assert_array_equal(np.array(entity["Scalars:scalars"]), curve.values)
        assert entity["SeriesLines:names"] == [series_names(curve)]
        np.testing.assert_allclose(entity["seconds"], np.arange(tracks.steps) / 15 * 1e9, atol=1)
    (language,) = (lane for lane in tracks.lanes() if lane.name == "language")
    assert ("/language" in recorded) == bool(language.bands)


def test_texts_change_where_their_bands_begin(frames_root: Path, tmp_path: Path) -> None:
    tracks = tracks_of(frames_root, "fmb", 0)
    save(tracks, tmp_path / "e.rrd")
    recorded = read_recording(tmp_path / "e.rrd")
    states = recorded["/texts/is_first"]
    assert (states["step"], states["StateChange:state"]) == ([0, 1], [["true"], ["false"]])
    assert recorded["/language"]["TextDocument:text"] == [[tracks.facts["language"]]]


def test_without_a_rate_there_are_no_seconds_but_a_blueprint(oxe_root: Path, tmp_path: Path) -> None:
    save(tracks_of(oxe_root, "tidybot", 0), tmp_path / "e.rrd")
    assert "seconds" not in read_recording(tmp_path / "e.rrd")["/cameras/image"]
    assert len(RrdReader(tmp_path / "e.rrd").blueprints()) == 1
