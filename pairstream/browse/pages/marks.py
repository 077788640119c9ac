"""The marked episodes of all datasets, and the file that ``make_loader`` takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

from nicegui import ui

from pairstream.browse.browsed_root import BrowsedRoot, episode_url
from pairstream.browse.shell import page_frame
from stream.base.errors import StreamError

_USES = {"leave_out": "leave these out", "keep": "keep only these"}


def show(root: BrowsedRoot) -> None:
    """Build the page."""
    marks = root.marks
    with page_frame(root, "Marks", address="/marks"):
        status_label = ui.label().classes("faint").mark("marks")
        # A loader refuses datasets that are not its own.
        marks_file = marks.path.name if marks.others else str(marks.path)
        call = f"make_loader({str(root.catalog.location)!r}, ..., select=Select(episodes={marks_file!r}))"
        ui.html(f"<pre><code>{escape(call)}</code></pre>", sanitize=False)
        download = ui.button("Download", on_click=lambda: ui.download.content(marks.to_json(), marks.path.name))
        download.props("dense flat no-caps").mark("download")
        content = ui.column().classes("w-full")

        def refresh() -> None:
            plural = "" if len(marks) == 1 else "s"
            status_label.text = f"{len(marks):,} marked episode{plural}, each click is written to {marks.path}"
            if others := ", ".join(marks.others):
                status_label.text += f", where those of {others} of other roots stay; give a loader the download"
            download.set_enabled(bool(marks.datasets))
            content.clear()
            with content:
                if not marks.datasets:
                    ui.label("Nothing is marked yet: press m on an episode's page, or tick it in a table of episodes.")
                for dataset_name in marks.datasets:
                    _build_dataset(root, dataset_name, refresh)

        refresh()


def _build_dataset(root: BrowsedRoot, dataset_name: str, refresh: Callable[[], None]) -> None:
    marks = root.marks
    locations = find_marked(root, dataset_name)

    def change(write_marks: Callable[..., None], *arguments: Any) -> None:
        try:
            write_marks(dataset_name, *arguments)
        except StreamError as error:
            ui.notify(str(error), type="negative")
        refresh()

    with ui.row().classes("items-center"):
        ui.html(f"<h2>{escape(dataset_name)}</h2>", sanitize=False)
        use = ui.radio(_USES, value=marks.use(dataset_name), on_change=lambda event: change(marks.set_use, event.value))
        use.props("inline dense").mark(f"use-{dataset_name}")

    for episode_id in marks.ids(dataset_name):
        with ui.row().classes("items-center gap-2"):
            if episode_id in locations:
                split, number = locations[episode_id]
                ui.link(f"{split} {number}", episode_url(dataset_name, split, number)).classes("plain")
            ui.label(episode_id)
            button = ui.button(icon="close", on_click=partial(change, marks.set, episode_id, False))
            button.props("flat dense size=sm aria-label=unmark")


def find_marked(root: BrowsedRoot, dataset_name: str) -> dict[str, tuple[str, int]]:
    """Return split and number of each marked episode of a dataset; patterns and unknown ids have none."""
    locations: dict[str, tuple[str, int]] = {}
    for split in root.dataset(dataset_name).shards:
        numbers = root.table(dataset_name, split).find_ids(root.marks.ids(dataset_name))
        locations |= {episode_id: (split, number) for episode_id, number in numbers.items()}
    return locations
