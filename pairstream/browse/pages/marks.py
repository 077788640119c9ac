"""The marked episodes of all datasets, and the file that ``make_loader`` takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

from nicegui import ui

from pairstream.browse.opened import Opened, episode_url
from pairstream.browse.shell import page_frame
from stream.base.errors import StreamError

_USES = {"leave_out": "leave these out", "keep": "keep these alone"}


def show(opened: Opened) -> None:
    """Build the page."""
    marks = opened.marks
    with page_frame(opened, "Marks"):
        told = ui.label().classes("faint").mark("marks")
        # A loader refuses datasets that are not its own.
        file = marks.path.name if marks.others else str(marks.path)
        ui.code(f"make_loader({str(opened.catalog.place)!r}, ..., episodes={file!r})", language="python")
        ui.button("Download", on_click=lambda: ui.download.content(marks.to_json(), marks.path.name)).props(
            "dense flat no-caps"
        ).mark("download")
        content = ui.column().classes("w-full")

        def refresh() -> None:
            told.text = f"{len(marks):,} marked episodes, each click is written to {marks.path}"
            if marks.others:
                told.text += (
                    f", where those of {', '.join(marks.others)} of other roots stay; give a loader the download"
                )
            content.clear()
            with content:
                for dataset in marks.datasets:
                    _build_dataset(opened, dataset, refresh)

        refresh()


def _build_dataset(opened: Opened, dataset: str, refresh: Callable[[], None]) -> None:
    marks = opened.marks
    places = find_marked(opened, dataset)

    def change(write: Callable[..., None], *arguments: Any) -> None:
        try:
            write(dataset, *arguments)
        except StreamError as error:
            ui.notify(str(error), type="negative")
        refresh()

    with ui.row().classes("items-center"):
        ui.html(f"<h2>{escape(dataset)}</h2>", sanitize=False)
        ui.radio(_USES, value=marks.use(dataset), on_change=lambda event: change(marks.set_use, event.value)).props(
            "inline dense"
        ).mark(f"use-{dataset}")

    for episode_id in marks.ids(dataset):
        with ui.row().classes("items-center gap-2"):
            if episode_id in places:
                split, number = places[episode_id]
                ui.link(f"{split} {number}", episode_url(dataset, split, number)).classes("plain")
            ui.label(episode_id)
            button = ui.button(icon="close", on_click=partial(change, marks.set, episode_id, False))
            button.props("flat dense size=sm aria-label=unmark")


def find_marked(opened: Opened, dataset: str) -> dict[str, tuple[str, int]]:
    """Return split and number of each marked episode of a dataset; patterns and unknown ids have none."""
    ids = opened.marks.ids(dataset)
    splits = opened.dataset(dataset).shards
    return {
        episode_id: (split, number)
        for split in splits
        for episode_id, number in opened.table(dataset, split).find_ids(ids).items()
    }
