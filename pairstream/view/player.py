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
    """Return what the player shows of an episode, with the steps [start, stop) of a window marked, as JSON.

    ``frames`` is a function of a camera's number. It returns an address with ``{step}`` in it, or a list with an
    address, None for no frame, or ``{"fault": text}`` for each step.
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
        "lanes": [lane._asdict() for lane in tracks.lanes()],
    }


def _describe_curve(curve: Curve) -> dict[str, Any]:
    return {
        "name": curve.name,
        "group": curve.group,
        "dims": curve.dims[:_DIMS],
        "left": max(0, len(curve.dims) - _DIMS),
        "values": [[_number(value) for value in values] for values in curve.values.T[:_DIMS].tolist()],
    }


def _number(number: float) -> float | str | None:
    # Six digits are more than a screen has; JSON has no NaN and no infinity.
    if number != number:
        return None
    return float(f"{number:.6g}") if abs(number) != float("inf") else ("inf" if number > 0 else "-inf")


def facts_text(tracks: Tracks) -> str:
    """Return the columns of the episode that have a value, as one line."""
    return " · ".join(f"{name} {value}" for name, value in tracks.facts.items() if value not in (None, "", []))


def player_call(episode: Mapping[str, Any], **options: Any) -> str:
    """Return the script that starts the player of an episode, as described, in the element ``player``.

    Options are the ``step`` to open, ``previous`` and ``next`` addresses, ``marked``, and ``mark``, the address that a
    change of the mark is sent to.
    """
    # `</script>` in a text must not end the script.
    description, settings = (json.dumps(value).replace("<", "\\u003c") for value in (episode, options))
    return f"<script>pairstreamPlayer('player', {description}, {settings});</script>\n"
