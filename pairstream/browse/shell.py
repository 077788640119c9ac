"""The frame that all pages share: header, navigation, colours, and the page of an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from http import HTTPStatus

from fastapi.responses import HTMLResponse
from nicegui import ui

from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.markup import STYLE
from stream.base.errors import ArgumentError, StateError

LINKS = (("Overview", "/"), ("Mixture", "/mixture"), ("Run", "/run"), ("Doctor", "/doctor"), ("Marks", "/marks"))
"""Entries of the navigation and their addresses."""


@contextmanager
def page_frame(root: BrowsedRoot, title: str) -> Iterator[None]:
    """Lay out a page: header with navigation, then a column for the content of the ``with`` block."""
    ui.page_title(f"{title} · pairstream")
    ui.add_css(STYLE)
    ui.colors(primary="#1553a5")
    with ui.header().classes("items-center gap-6 py-2").style("background: #1c2733"):
        ui.link("pairstream", "/").classes("text-white font-bold no-underline")
        for label, address in LINKS:
            ui.link(label, address).classes("text-white no-underline")
        ui.space()
        ui.label(str(root.catalog.location)).classes("text-white opacity-70 text-sm").mark("root")
    with ui.column().classes("w-full gap-2"):
        ui.html(f"<h1>{escape(title)}</h1>", sanitize=False)
        yield


def plain_page(root: BrowsedRoot, title: str, content: str, *, status: int = 200) -> HTMLResponse:
    """Return a page of HTML with the same header, without NiceGUI, whose scripts load slowly."""
    style = 'style="color: white; text-decoration: none; margin-right: 1.5rem"'
    links_html = "".join(f'<a href="{url}" {style}>{label}</a>' for label, url in (("pairstream", "/"), *LINKS))
    root_html = f'<span style="margin-left: auto; opacity: 0.7">{escape(str(root.catalog.location))}</span>'
    return HTMLResponse(
        f"<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>{escape(title)} · pairstream</title>"
        f"<style>body {{ margin: 0; font: 15px/1.5 Roboto, system-ui, sans-serif; }} {STYLE}</style>"
        "<body><header style='background: #1c2733; color: white; padding: 0.5rem 1rem; display: flex'>"
        f"{links_html}{root_html}</header>"
        f"<main style='padding: 1rem 1.5rem'><h1>{escape(title)}</h1>{content}</main></body></html>",
        status_code=status,
    )


def error_page(root: BrowsedRoot, error: Exception | str, *, status: int | None = None) -> HTMLResponse:
    """Return a page with the message of an error below the navigation."""
    message = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        message = f"{os.fspath(error.filename)}: {error.strerror}"
    status = status or status_of(error)
    title = "Not found" if status == HTTPStatus.NOT_FOUND else "Error"
    return plain_page(root, title, f"<p id='error' style='max-width: 50em'>{escape(message)}</p>", status=status)


def status_of(error: Exception | str) -> int:
    """Return 404 if an address names something that does not exist, or a file that is not a run's; 500 for damage."""
    return 404 if isinstance(error, ArgumentError | StateError) else 500
