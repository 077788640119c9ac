"""Overview of a root: its datasets with a first frame each, what they hold, and what was left out."""

from __future__ import annotations

from nicegui import ui

from pairstream.browse.facts import DatasetFacts
from pairstream.browse.markup import overview_html, totals
from pairstream.browse.opened import Opened
from pairstream.browse.shell import page_frame


def show(opened: Opened) -> None:
    """Build the page."""
    facts = [DatasetFacts.of(opened.dataset(name)) for name in opened.names]

    def picture(each: DatasetFacts) -> str:
        return opened.frame_url(each.name, each.first_split, 0, 0, 0)

    with page_frame(opened, "Overview"):
        ui.label(totals(facts)).classes("faint").mark("totals")
        ui.html(overview_html(facts, opened.damaged, picture=picture), sanitize=False).classes("w-full overflow-x-auto")
