"""``python docs/diagrams.py``: draw the diagrams of the pages, ``docs/diagram-*.svg``."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

_WIDTH, _HEIGHT, _LINE = 136, 46, 15
_INK, _FAINT = "#1f2937", "#6b7280"
_FILLS = {"step": "#eef2ff", "store": "#ecfdf5", "user": "#fff7ed", "group": "#f9fafb"}
_STROKES = {"step": "#6366f1", "store": "#10b981", "user": "#f59e0b", "group": "#d1d5db"}
_DASHES = ' stroke-dasharray="5 4"'
_HEAD = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0 8 4 0 8z" fill="{_FAINT}"/></marker></defs>'
)


@dataclass
class Drawing:
    """Parts of an SVG picture; coordinates are pixels, and boxes are named by their centre."""

    width: int
    height: int
    parts: list[str] = field(default_factory=list)
    places: dict[str, tuple[float, float, float, float]] = field(default_factory=dict)

    def box(self, name: str, x: float, y: float, text: str, kind: str = "step", width: float = _WIDTH) -> None:
        """Add a box with lines of text around (x, y)."""
        lines = text.split("\n")
        height = max(_HEIGHT - 14, 14 + _LINE * len(lines))
        self.places[name] = (x, y, width, height)
        self.parts.append(
            f'<rect x="{x - width / 2}" y="{y - height / 2}" width="{width}" height="{height}" '
            f'rx="{14 if kind == "store" else 5}" fill="{_FILLS[kind]}" stroke="{_STROKES[kind]}"/>'
        )
        for number, line in enumerate(lines):
            self.text(x, y + 4.5 + _LINE * (number - (len(lines) - 1) / 2), line)

    def group(self, left: float, top: float, right: float, bottom: float, title: str) -> None:
        """Add a frame with a title behind boxes that follow."""
        self.parts.append(
            f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" rx="8" '
            f'fill="{_FILLS["group"]}" stroke="{_STROKES["group"]}" stroke-dasharray="5 4"/>'
        )
        self.text(left + 12, top + 20, title, "start", _FAINT)

    def text(self, x: float, y: float, text: str, anchor: str = "middle", ink: str = _INK) -> None:
        """Add a line of text."""
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{ink}">{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False, tip: bool = True) -> None:
        """Add a line, with a tip at its end."""
        more = _DASHES if dashed else ""
        more += ' marker-end="url(#tip)"' if tip else ""
        self.parts.append(f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" stroke="{_FAINT}" fill="none"{more}/>')

    def arrows(self, *names: str) -> None:
        """Add arrows from each box to the next, from side to side in a row, else from below to above."""
        for first, second in pairwise(names):
            (x1, y1, w1, h1), (x2, y2, w2, h2) = self.places[first], self.places[second]
            if abs(y2 - y1) < (h1 + h2) / 2:
                side = 1 if x2 > x1 else -1
                self.line(x1 + side * w1 / 2, y1, x2 - side * w2 / 2, y2)
            else:
                side = 1 if y2 > y1 else -1
                self.line(x1, y1 + side * h1 / 2, x2, y2 - side * h2 / 2)

    def svg(self) -> str:
        """Return the file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'font-family="system-ui, sans-serif" font-size="13">{_HEAD}'
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="#ffffff"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def draw_programs() -> Drawing:
    """Draw the programs and the root between them."""
    drawing = Drawing(1040, 390)
    drawing.group(190, 20, 520, 150, "once, on any Beam runner")
    drawing.group(190, 175, 845, 315, "every run")
    drawing.box("source", 95, 90, "RLDS, LeRobot,\nyour own files", "store", 150)
    drawing.box("shard", 277, 90, "a source shard:\nepisodes, records")
    drawing.box("merge", 433, 90, "a split: parts\nof the index")
    drawing.box("root", 640, 90, "root: shards,\nindex, manifest", "store", 150)
    drawing.box("fetch", 277, 245, "fetch:\na local copy")
    drawing.box("loader", 433, 245, "loader")
    drawing.box("look", 600, 245, "info, browse,\nview, replay")
    drawing.box("export", 757, 245, "export")
    drawing.box("training", 433, 360, "PyTorch, JAX, Grain", "user", 150)
    drawing.box("slice", 945, 245, "a slice as a\nLeRobot dataset", "user", 150)
    drawing.arrows("source", "shard", "merge", "root")
    for name in ("fetch", "loader", "look", "export"):
        drawing.arrows("root", name)
    drawing.arrows("fetch", "loader")
    drawing.arrows("loader", "training")
    drawing.arrows("export", "slice")
    return drawing


def draw_batch() -> Drawing:
    """Draw the way of a batch, as messages from top to bottom."""
    drawing = Drawing(1000, 420)
    x = dict(zip("TLWR", (110, 370, 630, 890), strict=True))
    for letter, title in zip("TLWR", ("training loop", "loader", "worker process", "root"), strict=True):
        drawing.box(letter, x[letter], 30, title, "store" if letter == "R" else "step", 170)
        drawing.line(x[letter], 48, x[letter], 410, dashed=True, tip=False)
    messages = [
        ("L", "L", "plan: step N gives the rows"),
        ("L", "W", "row numbers, a free slot of the ring"),
        ("W", "R", "look the rows up in the index"),
        ("W", "R", "read the records"),
        ("W", "W", "decode JPEG, transform"),
        ("W", "L", "the batch is ready"),
        ("L", "T", "arrays over the slot"),
        ("T", "L", "the last array is gone: the slot is free"),
    ]
    for number, (first, second, text) in enumerate(messages):
        y = 85 + 42 * number
        if first == second:
            drawing.parts.append(
                f'<path d="M{x[first]} {y - 12} h26 v16 h-24" stroke="{_FAINT}" fill="none" marker-end="url(#tip)"/>'
            )
            drawing.text(x[first] + 34, y, text, "start")
        else:
            drawing.line(x[first], y, x[second], y, dashed=number == len(messages) - 1)
            drawing.text((x[first] + x[second]) / 2, y - 7, text)
    return drawing


_STREAM_ROWS = (
    ("frameworks", "PyTorch, Lightning, JAX, Grain"),
    ("adapters", "batches of public trainers"),
    ("loader", "make_loader, states, the log of a run"),
    ("workers statistics", "processes; normalisation"),
    ("batch", "from rows to arrays: look up, decode"),
    ("order cache", "the order of samples; remote roots"),
    ("sample label", "Frames, Vector, Select; added columns"),
    ("format", "records, manifest, tables"),
    ("storage", "files, object stores, web servers"),
    ("base", "errors, arguments, random numbers"),
)
_CONVERT_ROWS = (
    ("run doctor", "the command; odd data?"),
    ("beam_jobs verify", "Apache Beam; damaged files?"),
    ("engine", "Ray, or processes here"),
    ("tasks sample", "remaining work; drawn data"),
    ("index journal", "tables; finished parts"),
    ("registry", "what a dataset means"),
    ("shard", "episodes to records"),
    ("source", "RLDS, LeRobot, your files"),
    ("storage", "durable writes"),
)
"""Packages in rows, each of which imports only from rows below its own, and the content of the row."""


def draw_packages() -> Drawing:
    """Draw the packages in rows: imports go down."""
    drawing = Drawing(1040, 580)
    drawing.group(20, 16, 1020, 96, "pairstream: the programs that people run")
    for number, name in enumerate(("browse", "replay", "view", "info", "export", "fetch", "label", "publish")):
        drawing.box(name, 94 + 122 * number, 66, name, width=104)
    for left, width, name, rows in ((20, 520, "stream", _STREAM_ROWS), (560, 460, "convert", _CONVERT_ROWS)):
        drawing.group(left, 128, left + width, 564, f"{name}: imports go down")
        for row, (packages, content) in enumerate(rows):
            y = 172 + 41 * row
            for column, package in enumerate(packages.split()):
                kind = "store" if name == "stream" and row >= 7 else "step"
                drawing.box(package, left + 66 + 106 * column, y, package, kind, 98)
            drawing.text(left + 232, y + 4.5, content, "start", _FAINT)
    drawing.box("shared", 790, 172 + 41 * 9, "format, storage, base of stream", "store", 428)
    drawing.line(280, 96, 280, 127)
    drawing.line(790, 96, 790, 127)
    for x in (528, 1008):
        drawing.line(x, 160, x, 548)
    return drawing


_CHUNK = ((0.40, 0.10, 60), (0.43, 0.22, 50), (0.50, 0.33, 35), (0.60, 0.41, 20), (0.73, 0.45, 5))
"""State at t, and the poses of a chunk of 4 actions: x and y in metres, heading in degrees."""
_PANELS = {
    "absolute": ("absolute", "Vector(4)"),
    "world": ("relative to the state", 'relative_to="state"'),
    "body": ("in the frame of the tool", 'relative_to="state", poses="body"'),
    "previous": ("relative to the step before", 'relative_to="previous"'),
}
"""Title and call of each representation."""


def draw_actions() -> Drawing:
    """Draw one chunk of poses, and what a policy sees of it, in each representation."""
    drawing = Drawing(1040, 330)
    for number, (name, (title, call)) in enumerate(_PANELS.items()):
        left = 12 + 256 * number
        drawing.group(left, 14, left + 248, 316, title)
        pixels = [(left + 24 + 250 * x, 236 - 250 * y) for x, y, _ in _CHUNK]
        origins = pixels[:-1] if name == "previous" else [(left + 24, 236.0) if name == "absolute" else pixels[0]] * 4
        x, y, heading = _CHUNK[{"previous": 2}.get(name, 0)] if name != "absolute" else (0.0, 0.0, 0)
        frame = heading if name == "body" else 0
        _draw_axes(drawing, (left + 24 + 250 * x, 236 - 250 * y), frame)
        for (x1, y1), (x2, y2) in zip(origins, pixels[1:], strict=True):
            drawing.line(x1, y1, x2, y2, dashed=name != "previous")
        for step, (px, py) in enumerate(pixels):
            _draw_pose(drawing, px, py, _CHUNK[step][2], is_state=step == 0)
        x3, y3, heading3 = _CHUNK[3]
        turn = math.radians(frame)
        along = math.cos(turn) * (x3 - x) + math.sin(turn) * (y3 - y)
        across = math.cos(turn) * (y3 - y) - math.sin(turn) * (x3 - x)
        drawing.text(left + 124, 280, f"a[2] = ({along:.2f}, {across:.2f}, {heading3 - heading}°)")
        drawing.text(left + 124, 302, call, ink=_FAINT)
    drawing.text(pixels[0][0] + 16, pixels[0][1] + 16, "state at t", "start", _FAINT)
    return drawing


def _draw_axes(drawing: Drawing, origin: tuple[float, float], heading: float) -> None:
    """Add the axes in which numbers are measured."""
    for angle in (heading, heading + 90):
        turn = math.radians(angle)
        x, y = origin[0] + 46 * math.cos(turn), origin[1] - 46 * math.sin(turn)
        drawing.parts.append(
            f'<path d="M{origin[0]:.1f} {origin[1]:.1f} L{x:.1f} {y:.1f}" stroke="{_STROKES["user"]}" '
            'stroke-width="3" fill="none"/>'
        )


def _draw_pose(drawing: Drawing, x: float, y: float, heading: float, *, is_state: bool) -> None:
    """Add a pose: a dot, and a short line where the tool points."""
    kind = "store" if is_state else "step"
    turn = math.radians(heading)
    drawing.parts.append(
        f'<path d="M{x:.1f} {y:.1f} l{15 * math.cos(turn):.1f} {-15 * math.sin(turn):.1f}" '
        f'stroke="{_STROKES[kind]}" stroke-width="2" fill="none"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_FILLS[kind]}" stroke="{_STROKES[kind]}" stroke-width="2"/>'
    )


_CELL, _FIRST = 62, 250
"""Width of a step, and the middle of step 0, in pixels."""


def draw_sample() -> Drawing:
    """Draw two samples in their episode: frames, horizon of actions, masks, an edge, a goal."""
    drawing = Drawing(1040, 470)
    drawing.text(20, 34, 'frames=Frames([-2, 0, "goal"], edges="repeat"), action=8', "start")
    _draw_cells(drawing, 74, "episode of 10 steps", dict.fromkeys(range(10), True))
    for top, t, goal in ((108, 4, 7), (266, 1, 5)):
        drawing.group(20, top, 1020, top + 146, f"sample of step t = {t}")
        for step, name in ((t - 2, "t - 2"), (t, "t"), (goal, "goal")):
            drawing.text(_FIRST + _CELL * step, top + 39, name, ink=_FAINT)
        _draw_cells(drawing, top + 62, "frames", {step: step >= 0 for step in (t - 2, t, goal)})
        _draw_cells(drawing, top + 112, "action, horizon 8", {step: step < 10 for step in range(t, t + 8)})
    legend = (
        "Dashed: mask False. A frame beyond the episode repeats its edge, here frame 0; an action beyond it is 0.",
        'With edges="drop" the step t = 1 is not a sample. The goal is a random later step, drawn again in each epoch.',
    )
    for number, line in enumerate(legend):
        drawing.text(20, 436 + 20 * number, line, "start", _FAINT)
    return drawing


def _draw_cells(drawing: Drawing, y: float, label: str, steps: dict[int, bool]) -> None:
    """Add a row of steps at their place in the episode; a step with False is masked: dashed, with a 0."""
    drawing.text(36, y + 4.5, label, "start")
    for step, is_real in steps.items():
        x, kind = _FIRST + _CELL * step, "step" if is_real else "group"
        drawing.parts.append(
            f'<rect x="{x - 24}" y="{y - 14}" width="48" height="28" rx="4" fill="{_FILLS[kind]}" '
            f'stroke="{_STROKES[kind] if is_real else _FAINT}"{"" if is_real else _DASHES}/>'
        )
        drawing.text(x, y + 4.5, str(step) if is_real else "0", ink=_INK if is_real else _FAINT)


DIAGRAMS = {
    "programs": draw_programs,
    "batch": draw_batch,
    "packages": draw_packages,
    "actions": draw_actions,
    "sample": draw_sample,
}


def main() -> int:
    """Write all diagrams beside this file."""
    for name, draw in DIAGRAMS.items():
        Path(__file__).with_name(f"diagram-{name}.svg").write_text(draw().svg())
    return 0


if __name__ == "__main__":
    sys.exit(main())
