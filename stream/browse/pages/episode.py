"""An episode, to play."""

from __future__ import annotations

from nicegui import ui

from stream.browse.opened import Opened
from stream.browse.shell import page_frame


def show(opened: Opened, dataset: str, split: str, number: int, *, step: int) -> None:
    """Build the page of an episode.

    Raises:
        ArgumentError: There is no such dataset, split or episode.
        FormatError: The index is damaged.
    """
    rows = opened.episode(dataset, split, number)
    with page_frame(opened, f"{dataset}, {split}, episode {number}"):
        ui.label(f"{len(rows.steps)} steps")
        ui.image(opened.frame_url(dataset, split, number, 0, step)).classes("w-64")
