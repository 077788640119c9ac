"""Overview of a root: its datasets with a first frame each, what they hold, and what was left out."""

from __future__ import annotations

from nicegui import ui

from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.facts import DatasetFacts
from pairstream.browse.markup import overview_html, totals
from pairstream.browse.shell import page_frame


def show(root: BrowsedRoot) -> None:
    """Build the page."""
    all_facts = root.facts()

    def picture(dataset_facts: DatasetFacts) -> str:
        return root.frame_url(dataset_facts.name, dataset_facts.first_split, 0, 0, 0)

    with page_frame(root, "Overview"):
        ui.label(totals(all_facts)).classes("faint").mark("totals")
        ui.html(overview_html(all_facts, root.damaged, picture=picture), sanitize=False).classes(
            "w-full overflow-x-auto"
        )
