"""Description of an episode for the player in a browser, ``player.js``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pairstream.view.tracks import Curve, Tracks

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
                "frames": frames(camera_number),
            }
            for camera_number, track in enumerate(tracks.cameras)
        ],
        "curves": [_describe_curve(curve) for curve in tracks.curves()],
        "lanes": [
            {"name": lane.name, "bands": [(band.start, band.stop, band.text) for band in lane.bands]}
            for lane in tracks.lanes()
        ],
    }


def _describe_curve(curve: Curve) -> dict[str, Any]:
    dimension_names = list(curve.dims[:_DIMS])
    curve_values = np.array(curve.values.T[:_DIMS])
    # Five digits are more than a screen has; JSON has no NaN and no infinity.
    json_values = [[_number(curve_value) for curve_value in value_row] for value_row in curve_values.tolist()]
    return {
        "name": curve.name,
        "group": curve.group,
        "dims": dimension_names,
        "left": len(curve.dims) - len(dimension_names),
        "values": json_values,
    }


def _number(number: float) -> float | str | None:
    if number != number:
        return None
    return float(f"{number:.6g}") if abs(number) != float("inf") else ("inf" if number > 0 else "-inf")


def facts_text(tracks: Tracks) -> str:
    """Return the columns of the episode that have a value, as one line."""
    return " · ".join(
        f"{fact_name} {fact_value}"
        for fact_name, fact_value in tracks.facts.items()
        if fact_value not in (None, "", [])
    )


def player_call(episode: Mapping[str, Any], **options: Any) -> str:
    """Return the script that starts the player in the element ``player``.

    Args:
        episode: As ``describe_episode`` returns it.
        options: ``step`` to open, ``previous`` and ``next`` addresses, ``marked`` and ``mark``, the address that a
            change of the mark is sent to.
    """
    # `</script>` in a text must not end the script.
    arguments = ", ".join(
        json.dumps(argument, ensure_ascii=True).replace("<", "\\u003c") for argument in (episode, options)
    )
    return f"<script>pairstreamPlayer('player', {arguments});</script>\n"
