"""A step of a run: the rows of its batch."""

from __future__ import annotations

from nicegui import ui

from stream.browse.opened import Opened
from stream.browse.shell import page_frame


def show(opened: Opened, loader: str, *, step: int) -> None:
    """Build the page of a step of a ``loader.json``."""
    with page_frame(opened, "Run"):
        ui.label(f"{loader} step {step}")
