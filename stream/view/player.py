"""Description of an episode for the player in a browser, ``player.js``, and a page that plays it without a server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from stream.storage.errors import FormatError
from stream.view.tracks import CameraTrack, Curve, Tracks

PLAYER_FILE = Path(__file__).with_name("player.js")
_RATE = 10.0
"""Steps per second at which an episode plays whose dataset declares no rate."""
_DIMS = 64
"""Most dimensions of a curve that are sent."""


def describe_episode(
    tracks: Tracks, frames: Callable[[int], Any], *, window: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Return what the player shows, as JSON.

    Args:
        tracks: Episode.
        frames: Function of a camera's number. It returns an address with ``{step}`` in it, or a list with an address,
            None for no frame, or ``{"fault": text}`` for each step.
        window: Steps to mark, [start, stop).
    """
    return {
        "title": tracks.title,
        "steps": tracks.steps,
        "rate": tracks.rate or _RATE,
        "knowsRate": tracks.rate is not None,
        "window": window,
        "cameras": [
            {
                "name": track.camera.name,
                "role": track.camera.role,
                "depth": track.camera.is_depth,
                "size": max(track.camera.sizes, default=(1, 1)),
                "missing": np.flatnonzero(track.records < 0).tolist(),
                "frames": frames(number),
            }
            for number, track in enumerate(tracks.cameras)
        ],
        "curves": [_describe_curve(curve) for curve in tracks.curves()],
        "lanes": [
            {"name": lane.name, "bands": [(band.start, band.stop, band.text) for band in lane.bands]}
            for lane in tracks.lanes()
        ],
    }


def _describe_curve(curve: Curve) -> dict[str, Any]:
    dims = list(curve.dims[:_DIMS])
    values = np.array(curve.values.T[:_DIMS])
    # Five digits are more than a screen has; JSON has no NaN and no infinity.
    texts = [[_number(value) for value in row] for row in values.tolist()]
    return {
        "name": curve.name,
        "group": curve.group,
        "dims": dims,
        "left": len(curve.dims) - len(dims),
        "values": texts,
    }


def _number(value: float) -> float | str | None:
    if value != value:
        return None
    return float(f"{value:.6g}") if abs(value) != float("inf") else ("inf" if value > 0 else "-inf")


def static_page(tracks: Tracks) -> str:
    """Return an HTML page with the frames of an episode in it, which plays without a server."""
    episode = describe_episode(tracks, lambda number: _embedded(tracks.cameras[number], tracks.steps))
    facts = ", ".join(f"{name} {value}" for name, value in tracks.facts.items() if value not in (None, ""))
    return (
        f"<!DOCTYPE html>\n<html lang='en'><meta charset='utf-8'><title>{escape(tracks.title)}</title>\n"
        "<body style='font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem; color: #1b1e24; background: #fafafb'>\n"
        f"<h1 style='font-size: 1.4rem; margin: 0'>{escape(tracks.title)}</h1>\n"
        f"<p style='color: #667; font-size: 0.85rem'>{escape(facts)}</p>\n<div id='player'></div>\n"
        f"<script>{PLAYER_FILE.read_text()}</script>\n{player_call(episode)}</body></html>\n"
    )


def _embedded(camera: CameraTrack, steps: int) -> list[Any]:
    found: list[Any] = []
    for step in range(steps):
        if camera.records[step] < 0:
            found.append(None)
            continue
        try:
            picture = base64.b64encode(camera.read_picture(step)).decode()
        except (FormatError, OSError) as error:
            found.append({"fault": str(error)})
            continue
        found.append(f"data:image/jpeg;base64,{picture}")
    return found


def player_call(episode: Mapping[str, Any], **options: Any) -> str:
    """Return the script that starts the player in the element ``player``.

    Args:
        episode: As ``describe_episode`` returns it.
        options: ``step`` to open, ``previous`` and ``next`` addresses, ``marked`` and ``mark``, the address that a
            change of the mark is sent to.
    """
    # `</script>` in a text must not end the script.
    arguments = ", ".join(json.dumps(each, ensure_ascii=True).replace("<", "\\u003c") for each in (episode, options))
    return f"<script>pairstreamPlayer('player', {arguments});</script>\n"
