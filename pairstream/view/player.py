"""Description of an episode for the player in a browser, ``player.js``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pairstream.view.tracks import Curve, Tracks
from stream.format.fields import Fields
from stream.format.names import VECTORS

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
    curves = list(tracks.curves())
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
        "curves": [_describe_curve(curve, tracks.dataset.fields) for curve in curves],
        "lanes": [lane._asdict() for lane in tracks.lanes()],
        "facts": [[name, str(value)] for name, value in _facts(tracks) if value not in (None, "", [])],
        "faults": [
            {"name": f"{curve.name}: {curve.dims[dim]}", "steps": np.flatnonzero(bad[:, dim]).tolist()}
            for curve, bad in ((curve, curve.nonfinite) for curve in curves if curve.name in VECTORS)
            for dim in np.flatnonzero(bad.any(0)).tolist()
        ],
    }


def _describe_curve(curve: Curve, fields: Fields) -> dict[str, Any]:
    parts = [part for part in getattr(fields, curve.name, None) or () for _ in part.indices]
    # A gripper or a flag changes at a step, and has no values between.
    stepped = [dim for dim, part in enumerate(parts) if part.quantity == "gripper" or part.kind == "flag"]
    values = [
        [_number(value) if is_valid else None for value, is_valid in zip(column, curve.valid.tolist(), strict=True)]
        for column in curve.values.T[:_DIMS].tolist()
    ]
    dims, dims_left = curve.dims[:_DIMS], max(0, len(curve.dims) - _DIMS)
    content = {"name": curve.name, "group": curve.group, "dims": dims, "left": dims_left}
    return {**content, "values": values, "stepped": stepped}


def _number(number: float) -> float | str:
    # Six digits are more than a screen has; JSON has no NaN and no infinity.
    return float(f"{number:.6g}") if math.isfinite(number) else str(number)


def _facts(tracks: Tracks) -> Iterator[tuple[str, Any]]:
    """Yield the name of the episode in commands and in Python, then its columns."""
    yield "name", f"{tracks.dataset.name}/{tracks.index.split}/{tracks.episode}"
    yield from tracks.facts.items()


def player_call(episode: Mapping[str, Any], **options: Any) -> str:
    """Return the script that starts the player of an episode, as described, in the element ``player``.

    Options are the ``step`` to open (None for the first NaN of action and state, or 0), ``previous`` and ``next``
    addresses, ``marked``, and ``mark``, the address that a change of the mark is sent to.
    """
    # `</script>` in a text must not end the script.
    description, settings = (json.dumps(value).replace("<", "\\u003c") for value in (episode, options))
    return f"<script>pairstreamPlayer('player', {description}, {settings});</script>\n"
