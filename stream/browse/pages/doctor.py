"""Mistakes that ``convert.doctor`` finds in the data, with a picture of each episode."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from html import escape

from nicegui import ui

from stream.browse.doctor import Doctor, Finding
from stream.browse.opened import Opened, episode_url
from stream.browse.shell import page_frame

_REFRESH_S = 0.5


def show(opened: Opened, doctor: Doctor) -> None:
    """Build the page of all datasets."""
    with page_frame(opened, "Doctor"):
        ui.label("Mistakes in the data themselves: all columns of the indexes, and some of the pictures.").classes(
            "faint"
        )
        show_findings(opened, doctor, list(opened.names), split=None)


def show_findings(opened: Opened, doctor: Doctor, datasets: list[str], *, split: str | None) -> None:
    """Show the findings of some datasets, and a button that looks for them in the background.

    Args:
        opened: Root.
        doctor: Newest run.
        datasets: Datasets to look at.
        split: Split whose findings to show, or None for all.
    """
    with ui.row().classes("items-center"):
        button = ui.button("Look for mistakes").mark("look")
        state = ui.label().classes("faint").mark("doctor-state")
    content = ui.html(sanitize=False).classes("w-full")
    shown: list[object] = [None]

    def refresh() -> None:
        button.set_enabled(doctor.began is None)
        seconds, looked = doctor.seconds, doctor.looked_at.issuperset(datasets)
        if seconds is not None:
            state.text = f"convert.doctor runs, {seconds:.0f} s"
        else:
            state.text = doctor.error or ("" if looked else "not looked at yet")
        if shown[0] is not doctor.findings:
            shown[0] = doctor.findings
            found = [each for each in doctor.findings if each.dataset in datasets]
            if split is not None:
                found = [each for each in found if each.split in ("", split)]
            content.content = findings_html(opened, found) if looked or found else ""

    async def look() -> None:
        task = asyncio.create_task(doctor.run(datasets))
        doctor.tasks.add(task)
        task.add_done_callback(doctor.tasks.discard)
        await asyncio.sleep(0)
        refresh()

    button.on_click(look)
    ui.timer(_REFRESH_S, refresh)
    refresh()


def findings_html(opened: Opened, findings: Sequence[Finding]) -> str:
    """Return findings as a table, every text escaped, with the frame of each example's step."""
    if not findings:
        return "<p>Nothing was found.</p>"
    rows = []
    for finding in findings:
        examples = "".join(_example(opened, finding, number) for number in range(len(finding.places)))
        cells = [
            f'<span class="{finding.severity}">{finding.severity}</span>',
            escape(finding.dataset),
            escape(finding.split or "all"),
            escape(finding.rule),
            escape(finding.count),
            f"{escape(finding.meaning)}<div>{examples}</div>",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("severity", "dataset", "split", "rule", "count", "found"))
    return f'<table class="plain" id="findings"><tr>{head}</tr>{"".join(rows)}</table>'


def _example(opened: Opened, finding: Finding, number: int) -> str:
    place = finding.places[number]
    said = f" “{escape(place.instruction)}”" if place.instruction else ""
    text = f"{escape(place.text)}{said}"
    if place.episode is None:
        return f'<p class="faint">{text}</p>'
    address = escape(episode_url(finding.dataset, finding.split, place.episode, step=place.step))
    picture = escape(opened.frame_url(finding.dataset, finding.split, place.episode, 0, place.step))
    return (
        f'<p class="example"><a class="plain" href="{address}"><img src="{picture}" loading="lazy" '
        f'onerror="this.remove()">episode {place.episode}</a> <span class="faint">{text}</span></p>'
    )
