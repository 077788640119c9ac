"""The web application: an address for each page and each stored frame, and the server behind them."""

from __future__ import annotations

import functools
import inspect
import logging
import socket
from collections.abc import Callable
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from nicegui import app as pages_of_nicegui
from nicegui import ui
from starlette.middleware.trustedhost import TrustedHostMiddleware

from pairstream.browse.doctor import Doctor
from pairstream.browse.opened import Opened
from pairstream.browse.pages import dataset as dataset_page
from pairstream.browse.pages import doctor as doctor_page
from pairstream.browse.pages import episode, marks, mixture, overview, run
from pairstream.browse.shell import error_page
from pairstream.view.player import PLAYER_FILE
from stream.base.errors import ArgumentError, StateError, StreamError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_KEPT_FOR = "private, max-age=86400, immutable"
_BUILDING_S = 120
"""Seconds that a page may take to build; the batch of a run may have to come from a slow disk."""
_TIMEOUT_S = 120
_SHUTDOWN_S = 2
"""Seconds that open connections get after Ctrl-C."""


def serve(opened: Opened, listening: socket.socket, *, started: Callable[[], None]) -> None:
    """Serve the pages on a bound socket until Ctrl-C.

    Args:
        opened: Root.
        listening: Socket.
        started: Function to call when the pages can be asked for.
    """
    app = make_app(opened)
    app.router.on_startup.append(started)
    # It warns of every unknown address.
    logging.getLogger("nicegui").setLevel(logging.ERROR)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_S, access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


def make_app(opened: Opened) -> FastAPI:
    """Return the application of a root; one per process, as NiceGUI holds its pages in the process."""
    app = FastAPI(openapi_url=None)
    if opened.takes_paths:
        # A name that points to this machine must not give other sites the pages.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
    app.get("/frame/{dataset}/{split}/{number}/{camera}/{step}.jpg")(functools.partial(_frame, opened))
    app.post("/mark/{dataset}/{split}/{number}")(functools.partial(_mark, opened))
    app.get("/player.js")(lambda: FileResponse(PLAYER_FILE, headers={"Cache-Control": "no-cache"}))

    doctor = Doctor(opened)
    app.router.on_shutdown.append(doctor.stop)

    page = functools.partial(_page, opened)

    @page("/")
    def show_overview() -> None:
        overview.show(opened)

    @page("/dataset/{name}/{split}")
    async def show_dataset(name: str, split: str, state: str = "{}", tab: str = "") -> None:
        await dataset_page.show(opened, doctor, name, split, state=state, tab=tab)

    @page("/doctor")
    def show_doctor() -> None:
        doctor_page.show(opened, doctor)

    @page("/marks")
    def show_marks() -> None:
        marks.show(opened)

    @page("/mixture")
    def show_mixture(request: Request) -> None:
        mixture.show(opened, mixture.Asked.of(opened, request.query_params))

    @app.get("/episode/{dataset}/{split}/{number}")
    def show_episode(dataset: str, split: str, number: int, step: int = 0, window: int = 0) -> Response:
        try:
            return episode.show(opened, dataset, split, number, step=step, window=window)
        except (StreamError, OSError) as error:
            return error_page(opened, error, status=_status(error))

    @page("/run")
    async def show_run(loader: str = "", step: int = 0, rank: int | None = None, first: int = 0) -> None:
        await run.show(opened, loader, step=step, rank=rank, first=first)

    for part in (app, pages_of_nicegui):
        part.add_exception_handler(404, functools.partial(_refuse, opened))
        part.add_exception_handler(RequestValidationError, functools.partial(_refuse, opened))
    ui.run_with(app, title="pairstream", show_welcome_message=False, reconnect_timeout=10)
    return app


def _refuse(opened: Opened, request: Request, error: Exception) -> Response:
    """Return the page of an address that names no page, or whose numbers are none."""
    if isinstance(error, RequestValidationError):
        fault = error.errors()[0]
        return error_page(opened, f"{fault['loc'][-1]}={fault['input']!r:.80}: {fault['msg']}", status=422)
    return error_page(opened, f"{request.url.path:.200}: no such page", status=404)


def _page(opened: Opened, path: str) -> Callable[[Callable[..., Any]], None]:
    """Give a page its address; errors of the data become a page of one sentence."""

    def register(build: Callable[..., Any]) -> None:
        @functools.wraps(build)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                made = build(*args, **kwargs)
                return await made if inspect.isawaitable(made) else made
            except (StreamError, OSError) as error:
                return error_page(opened, error, status=_status(error))

        ui.page(path, response_timeout=_BUILDING_S)(guarded)

    return register


def _frame(opened: Opened, dataset: str, split: str, number: int, camera: int, step: int) -> Response:
    """Return the JPEG of a stored frame; FastAPI calls this in a thread."""
    try:
        picture = opened.episode(dataset, split, number).camera(camera).read_picture(step)
    except (StreamError, OSError) as error:
        return PlainTextResponse(str(error), status_code=_status(error))
    return Response(picture, media_type="image/jpeg", headers={"Cache-Control": _KEPT_FOR})


def _mark(opened: Opened, dataset: str, split: str, number: int, marked: Annotated[bool, Body(embed=True)]) -> Response:
    """Mark an episode, or take its mark away."""
    try:
        opened.marks.set(dataset, opened.episode(dataset, split, number).facts["episode_id"], marked)
    except (StreamError, OSError) as error:
        return PlainTextResponse(str(error), status_code=_status(error))
    return JSONResponse({"marked": marked})


def _status(error: Exception) -> int:
    # What the address names is not there, or no file of a run.
    return 404 if isinstance(error, ArgumentError | StateError) else 500
