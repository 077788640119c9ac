"""Mistakes that ``pairstream doctor`` finds in the data, with a picture of each episode."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from nicegui import background_tasks, ui

from pairstream.browse.browsed_root import BrowsedRoot, episode_url
from pairstream.browse.doctor import Doctor, Finding, FindingExample
from pairstream.browse.markup import findings_html
from pairstream.browse.shell import page_frame

_REFRESH_S = 0.5


def show(root: BrowsedRoot, doctor: Doctor) -> None:
    """Build the page of all datasets."""
    with page_frame(root, "Doctor", address="/doctor"):
        scope = "Mistakes in the data themselves: all columns of the indexes, and some of the pictures."
        ui.label(scope).classes("faint")
        show_findings(root, doctor, list(root.names), split_name=None)


def show_findings(root: BrowsedRoot, doctor: Doctor, dataset_names: list[str], *, split_name: str | None) -> None:
    """Show the findings of some datasets (of a split, or None for all), and a button that looks for them."""
    with ui.row().classes("items-center"):
        button = ui.button("Look for mistakes").props("no-caps").mark("look")
        status_label = ui.label().classes("faint").mark("doctor-state")
    content = ui.html(sanitize=False).classes("w-full")
    shown_findings: list[object] = [None]

    def refresh() -> None:
        button.set_enabled(doctor.began is None)
        has_looked = doctor.looked_at.issuperset(dataset_names)
        if doctor.began is not None:
            status_label.text = f"pairstream doctor runs, {time.monotonic() - doctor.began:.0f} s"
        else:
            status_label.text = doctor.error or ("" if has_looked else "not looked at yet; takes seconds to minutes")
        if shown_findings[0] is not doctor.findings:
            shown_findings[0] = doctor.findings
            findings = [finding for finding in doctor.findings if finding["dataset"] in dataset_names]
            if split_name is not None:
                findings = [finding for finding in findings if finding["split"] in (None, split_name)]
            table = findings_html(findings, picture=partial(_picture, root), address=_address)
            content.content = table if has_looked or findings else ""

    async def look() -> None:
        background_tasks.create(doctor.run(dataset_names))
        await asyncio.sleep(0)
        refresh()

    button.on_click(look)
    ui.timer(_REFRESH_S, refresh)
    refresh()


def _picture(root: BrowsedRoot, finding: Finding, example: FindingExample) -> str:
    return root.frame_url(finding["dataset"], finding["split"], example["episode"], 0, example["step"])


def _address(finding: Finding, example: FindingExample) -> str:
    return episode_url(finding["dataset"], finding["split"], example["episode"], step=example["step"])
