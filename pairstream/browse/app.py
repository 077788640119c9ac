"""The web application: an address for each page and each stored frame, and the server behind them."""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Callable
from html import escape
from typing import Annotated, Any
from urllib.parse import quote

import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from nicegui import app as pages_of_nicegui
from nicegui import ui
from starlette.middleware.trustedhost import TrustedHostMiddleware

from pairstream.browse.browsed_root import LOOPBACK, BrowsedRoot, dataset_url, episode_url
from pairstream.browse.doctor import Doctor
from pairstream.browse.facts import Facts
from pairstream.browse.markup import OVERVIEW_SCRIPT, overview_html, totals
from pairstream.browse.pages import dataset as dataset_page
from pairstream.browse.pages import doctor as doctor_page
from pairstream.browse.pages import marks, mixture, run
from pairstream.browse.shell import error_page, plain_page, status_of
from pairstream.view.player import PLAYER_FILE, describe_episode, player_call
from stream.base.errors import StreamError

_KEPT_FOR = "private, max-age=86400, immutable"
_BUILDING_S = 120
"""Seconds that a page may take to build; the batch of a run may have to come from a slow disk."""
_SHUTDOWN_S = 2
"""Seconds that open connections get after Ctrl-C."""


def serve(root: BrowsedRoot, listening: socket.socket, *, started: Callable[[], None]) -> None:
    """Serve the pages on a bound socket until Ctrl-C; call ``started`` when the pages are available."""
    app = make_app(root)
    app.router.on_startup.append(started)
    # It warns of every unknown address.
    logging.getLogger("nicegui").setLevel(logging.ERROR)
    server_config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_S, access_log=False)
    uvicorn.Server(server_config).run(sockets=[listening])


def make_app(root: BrowsedRoot) -> FastAPI:
    """Return the application of a root; one per process, as NiceGUI holds its pages in the process."""
    app = FastAPI(openapi_url=None)
    if root.takes_paths:
        # A name that points to this machine must not give other sites the pages.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
    app.get("/frame/{dataset}/{split}/{number}/{camera}/{step}.jpg")(functools.partial(_frame, root))
    app.post("/mark/{dataset}/{split}/{number}")(functools.partial(_mark, root))
    app.get("/player.js")(lambda: FileResponse(PLAYER_FILE, headers={"Cache-Control": "no-cache"}))

    app.get("/")(functools.partial(_overview, root))
    app.get("/run")(functools.partial(run.show, root))
    app.get("/episode/{dataset}/{split}/{number}")(functools.partial(_episode, root))
    for application in (app, pages_of_nicegui):
        for error_type in (404, RequestValidationError, StreamError, OSError):
            application.add_exception_handler(error_type, functools.partial(_refuse, root))

    doctor = Doctor(root)
    app.router.on_shutdown.append(doctor.stop)
    pages: dict[str, Callable[..., Any]] = {
        "/dataset/{name}/{split}": functools.partial(dataset_page.show, root, doctor),
        "/doctor": functools.partial(doctor_page.show, root, doctor),
        "/marks": functools.partial(marks.show, root),
        "/mixture": functools.partial(mixture.show, root),
    }
    for address, show_page in pages.items():
        ui.page(address, response_timeout=_BUILDING_S)(show_page)
    ui.run_with(app, title="pairstream", dark=None, language="en-US", show_welcome_message=False, reconnect_timeout=10)
    return app


def _refuse(root: BrowsedRoot, request: Request, error: Exception) -> Response:
    """Return the page of damaged data, an unknown address, or an address with malformed numbers."""
    if isinstance(error, StreamError | OSError):
        is_page = not request.url.path.startswith(("/frame/", "/mark/"))
        return error_page(root, error) if is_page else PlainTextResponse(str(error), status_code=status_of(error))
    if isinstance(error, RequestValidationError):
        problem = error.errors()[0]
        return error_page(root, f"{problem['loc'][-1]}={problem['input']!r:.80}: {problem['msg']}", status=422)
    return error_page(root, f"{request.url.path:.200}: no such page", status=404)


def _overview(root: BrowsedRoot) -> HTMLResponse:
    all_facts = root.facts()
    datasets = overview_html(all_facts, root.damaged, picture=functools.partial(_first_frame, root))
    return plain_page(root, "Overview", f"<div class='faint'>{totals(all_facts)}</div>{datasets}{OVERVIEW_SCRIPT}")


def _first_frame(root: BrowsedRoot, facts: Facts) -> str:
    return root.frame_url(facts["dataset"], facts["first_split"], 0, 0, 0)


def _episode(
    root: BrowsedRoot, dataset: str, split: str, number: int, step: int | None = None, window: int = 0
) -> HTMLResponse:
    """Return the page of an episode at a step, from which on ``window`` steps are marked as those of a sample.

    Without a step, the page opens at the first NaN of action and state.
    """
    tracks = root.episode(dataset, split, number)
    num_episodes = len(tracks.index.episodes)

    def frames(camera_number: int) -> str:
        return root.frame_url(dataset, split, number, camera_number, 0).replace("/0.jpg", "/{step}.jpg")

    def neighbour_url(neighbour: int) -> str:
        return episode_url(dataset, split, neighbour) if 0 <= neighbour < num_episodes else ""

    start = step or 0
    marked_steps = (start, min(start + window, tracks.steps)) if window else None
    player_script = player_call(
        describe_episode(tracks, frames, window=marked_steps),
        step=step,
        marked=root.marks.has(dataset, tracks.facts["episode_id"]),
        mark=f"/mark/{quote(dataset)}/{quote(split)}/{number}",
        previous=neighbour_url(number - 1),
        next=neighbour_url(number + 1),
    )
    content = (
        f"<a class='plain' href='{dataset_url(dataset, split)}'>all episodes of {escape(dataset)}, {escape(split)}</a>"
        f"<div id='player'></div><script src='/player.js'></script>{player_script}"
    )
    return plain_page(root, f"{dataset}, {split}, episode {number + 1:,} of {num_episodes:,}", content)


def _frame(root: BrowsedRoot, dataset: str, split: str, number: int, camera: int, step: int) -> Response:
    """Return the JPEG of a stored frame; FastAPI calls this in a thread."""
    picture = root.episode(dataset, split, number).camera(camera).read_picture(step)
    return Response(picture, media_type="image/jpeg", headers={"Cache-Control": _KEPT_FOR})


def _mark(
    root: BrowsedRoot, dataset: str, split: str, number: int, marked: Annotated[bool, Body(embed=True)]
) -> Response:
    """Mark an episode, or take its mark away."""
    root.marks.set(dataset, root.episode(dataset, split, number).facts["episode_id"], marked)
    return JSONResponse({"marked": marked})
