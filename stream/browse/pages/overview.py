"""Overview of a root: its datasets with a first frame each, what they hold, and what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from nicegui import ui

from stream.browse.facts import DatasetFacts, human_bytes, human_hours
from stream.browse.opened import Opened, dataset_url
from stream.browse.shell import page_frame

_HEADS = ("", "dataset", "episodes", "hours", "samples", "size", "rate", "robot", "cameras", "licence", "left out")
_NUMBERS = ("episodes", "hours", "samples", "size", "rate")


def show(opened: Opened) -> None:
    """Build the page."""
    facts = [DatasetFacts.of(opened.dataset(name)) for name in opened.names]
    with page_frame(opened, "Overview"):
        ui.label(totals(facts)).classes("faint").mark("totals")
        ui.html(overview_html(opened, facts, picture=lambda each: first_frame(opened, each)), sanitize=False)


def totals(facts: Sequence[DatasetFacts]) -> str:
    """Return the sums over all datasets in words."""
    episodes, samples, size = (sum(getattr(each, key) for each in facts) for key in ("episodes", "samples", "bytes"))
    hours = sum(each.hours or 0 for each in facts)
    return f"{len(facts)} datasets, {episodes:,} episodes, {human_hours(hours)} hours, {samples:,} samples, {human_bytes(size)}"


def first_frame(opened: Opened, facts: DatasetFacts) -> str:
    """Return the address of the first frame of a dataset, of the first split with episodes."""
    split = next((name for name, count in facts.splits.items() if count), next(iter(facts.splits), ""))
    return opened.frame_url(facts.name, split, 0, 0, 0)


def overview_html(
    opened: Opened, facts: Sequence[DatasetFacts], *, picture: Callable[[DatasetFacts], str], links: bool = True
) -> str:
    """Return the table of datasets, every text escaped.

    Args:
        opened: Root.
        facts: Facts of each dataset.
        picture: Function that returns the address of a dataset's picture.
        links: Whether names lead to the pages of the splits.
    """
    head = "".join(f"<th{_side(name)}>{name}</th>" for name in _HEADS)
    rows = "".join(_row(each, escape(picture(each)), links=links) for each in facts)
    broken = "".join(
        f'<tr><td></td><td>{escape(name)}</td><td colspan="9" class="error">{escape(text)}</td></tr>'
        for name, text in opened.damaged.items()
    )
    return f'<table class="plain" id="datasets"><tr>{head}</tr>{rows}{broken}</table>'


def _row(facts: DatasetFacts, picture: str, *, links: bool) -> str:
    splits = [
        f'<a class="plain" href="{dataset_url(facts.name, split)}">{escape(split)}</a> {count:,}'
        if links
        else f"{escape(split)} {count:,}"
        for split, count in facts.splits.items()
    ]
    main = dataset_url(facts.name, next(iter(facts.splits), ""))
    name = (
        f'<a class="plain" href="{main}"><b>{escape(facts.name)}</b></a>' if links else f"<b>{escape(facts.name)}</b>"
    )
    quirks = "".join(f"<li>{escape(quirk)}</li>" for quirk in facts.quirks)
    quirks = f"<details class='faint'><summary>{len(facts.quirks)} quirks</summary><ul>{quirks}</ul></details>"
    told = f'{name} <span class="faint">{escape(facts.version)}, {facts.layout}</span><br>{", ".join(splits)}'
    left = ", ".join(f"{count:,} {escape(reason)}" for reason, count in facts.left_out.items())
    hide = "onerror=\"this.style.visibility = 'hidden'\""
    cells = {
        "": f'<img src="{picture}" loading="lazy" alt="" class="first" {hide}>',
        "dataset": f'{told}<div class="faint">{escape(facts.description)}</div>{quirks if facts.quirks else ""}',
        "episodes": f"{facts.episodes:,}",
        "hours": "?" if facts.hours is None else human_hours(facts.hours),
        "samples": f"{facts.samples:,}",
        "size": human_bytes(facts.bytes),
        "rate": f"{facts.rate:g} Hz" if facts.rate else "?",
        "robot": escape(facts.robot or "named by each episode"),
        "cameras": escape(", ".join(facts.cameras)),
        "licence": escape(facts.licence or "not told"),
        "left out": left or '<span class="faint">nothing</span>',
    }
    return "<tr>" + "".join(f"<td{_side(key)}>{cell}</td>" for key, cell in cells.items()) + "</tr>"


def _side(column: str) -> str:
    return ' class="number"' if column in _NUMBERS else ""
