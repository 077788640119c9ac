"""Mistakes that ``convert.doctor`` finds in the data, with a picture of each episode."""

from __future__ import annotations

import asyncio
from functools import partial

from nicegui import ui

from pairstream.browse.doctor import Doctor, Finding, Place
from pairstream.browse.markup import findings_html
from pairstream.browse.opened import Opened, episode_url
from pairstream.browse.shell import page_frame

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
        button = ui.button("Look for mistakes").props("no-caps").mark("look")
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
            content.content = (
                findings_html(found, picture=partial(_picture, opened), address=_address) if looked or found else ""
            )

    async def look() -> None:
        task = asyncio.create_task(doctor.run(datasets))
        doctor.tasks.add(task)
        task.add_done_callback(doctor.tasks.discard)
        await asyncio.sleep(0)
        refresh()

    button.on_click(look)
    ui.timer(_REFRESH_S, refresh)
    refresh()


def _picture(opened: Opened, finding: Finding, place: Place) -> str:
    return opened.frame_url(finding.dataset, finding.split, place.episode or 0, 0, place.step)


def _address(finding: Finding, place: Place) -> str:
    return episode_url(finding.dataset, finding.split, place.episode or 0, step=place.step)
