"""The frame that all pages share: header, navigation, colours, and the page of an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from http import HTTPStatus

from fastapi.responses import HTMLResponse
from nicegui import ui

from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.markup import STYLE, THEME_SCRIPT, THEME_SWITCH
from stream.base.errors import ArgumentError, StateError

LINKS = (("Overview", "/"), ("Mixture", "/mixture"), ("Run", "/run"), ("Doctor", "/doctor"), ("Marks", "/marks"))
"""Entries of the navigation and their addresses."""


class LatestWish:
    """The visitor's wishes for one part of a page, of which only the last may be shown, however long each takes."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> Callable[[], bool]:
        """Begin a wish; the function that is returned says whether it is still the last one."""
        self._count += 1
        number = self._count
        return lambda: number == self._count


@contextmanager
def page_frame(root: BrowsedRoot, title: str, *, address: str = "/") -> Iterator[None]:
    """Lay out a page: header with navigation, then a column for the content of the ``with`` block.

    ``address`` is the entry of the navigation that the page belongs to.
    """
    ui.page_title(f"{title} · pairstream")
    ui.add_css(STYLE)
    ui.add_head_html(THEME_SCRIPT)
    ui.colors(primary="#1553a5")
    with ui.header().classes("p-0"):
        ui.html(_header(root, address), sanitize=False).classes("w-full")
    with ui.column().classes("w-full gap-2"):
        ui.html(f"<h1>{escape(title)}</h1>", sanitize=False)
        yield


def plain_page(root: BrowsedRoot, title: str, content: str, *, status: int = 200, address: str = "/") -> HTMLResponse:
    """Return a page of HTML with the same header, without NiceGUI, whose scripts load slowly; see ``page_frame``."""
    return HTMLResponse(
        f"<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>{escape(title)} · pairstream</title>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><style>{STYLE}</style>{THEME_SCRIPT}"
        f"<body>{_header(root, address)}<main><h1>{escape(title)}</h1>{content}</main></body></html>",
        status_code=status,
    )


def _header(root: BrowsedRoot, address: str) -> str:
    location = escape(str(root.catalog.location))
    links = "".join(
        f"<a href='{url}'{' aria-current=page' if url == address else ''}>{label}</a>" for label, url in LINKS
    )
    return f"<nav class='top'>{links}<span title='{location}'>{location}</span>{THEME_SWITCH}</nav>"


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
