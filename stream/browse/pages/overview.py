"""Overview of a root: its datasets."""

from __future__ import annotations

from nicegui import ui

from stream.browse.opened import Opened, dataset_url
from stream.browse.shell import page_frame


def show(opened: Opened) -> None:
    """Build the page."""
    with page_frame(opened, "Overview"):
        for name in opened.names:
            dataset = opened.dataset(name)
            for split in dataset.shards:
                ui.link(f"{name} {split}", dataset_url(name, split))
