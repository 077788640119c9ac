"""A step of a run: the rows of its batch as the model got them, what is wrong with them, and where they come from."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
from nicegui import run, ui
from PIL import Image

from pairstream.browse.opened import Opened, episode_url
from pairstream.browse.shell import page_frame
from pairstream.replay.contact_sheet import ROWS_PER_PAGE, draw_cells
from pairstream.replay.shown_step import ShownStep, marks_of, sheet_names, show_step, with_transforms
from pairstream.view.window import window_of
from stream.base.errors import ArgumentError, StreamError
from stream.loader.open_mixture import OpenMixture
from stream.loader.rank_plan import RankPlan
from stream.loader.run_config import RunConfig
from stream.loader.saved import SavedTransforms, read_saved
from stream.order.reference import SampleRef

_STYLE = """
.rows { display: flex; flex-wrap: wrap; gap: 12px; }
.batch-row { border: 1px solid #d9dbe2; border-radius: 6px; background: white; padding: 4px 4px 8px; max-width: 100%; }
.batch-row.bad { border-color: #c8141e; }
.batch-row img { display: block; max-width: 100%; }
.batch-row div { font-size: 12px; padding: 0 6px; max-width: 330px; overflow-wrap: anywhere; }
.run-form { display: flex; gap: 8px; align-items: center; flex-wrap: wrap; }
.run-form input { border: 1px solid #b6bac6; border-radius: 4px; padding: 4px 8px; background: white; }
.run-form button { border-radius: 4px; padding: 5px 13px; color: white; background: #1553a5; }
"""
_NO_RUN = "A loader.json is the file that loader.save(...) writes beside a checkpoint; none is near this root."
_NOT_TRANSFORMED = (
    "before the run's transforms, if it has any; start the browser with --transforms MODULE:NAME to see what they give"
)


@dataclass(frozen=True)
class _Page:
    """Content of the page of a step: HTML of its rows, the rows with faults, and the next first row."""

    plan: RankPlan
    shown: ShownStep
    cells: str
    next_first: int | None


async def show(opened: Opened, loader: str, *, step: int, rank: int | None, first: int) -> None:
    """Build the page of a step of a ``loader.json``.

    Args:
        opened: Root.
        loader: File, or nothing for a list of those near the root.
        step: Step of the run, from 0.
        rank: Rank of the run, or that of the file.
        first: First of the rows to show, those with bad values first.

    Raises:
        ArgumentError: The file may not be opened, or there is no such step, rank or row.
        StateError: It is no loader.json, or that of other data.
        RecordError: A record of the step is damaged.
    """
    near = find_runs(opened)
    page = None
    if loader:
        if not opened.takes_paths and loader not in map(str, near):
            raise ArgumentError(f"{loader:.200}: other machines reach this page, so it opens only files near the root")
        page = await run.io_bound(_make, opened, loader, step, rank, first)
    with page_frame(opened, "Run" if page is None else f"Step {step:,} of {loader}"):
        ui.add_css(_STYLE)
        ui.html(_form(loader or (str(near[0]) if near else ""), step, rank), sanitize=False)
        if page is None:
            links = [
                f"<li><a class='plain' href='{_address(str(each), 0)}'>{escape(str(each))}</a></li>" for each in near
            ]
            text = "Runs near this root:" if near else _NO_RUN
            ui.html(f"<p class='faint'>{text}</p><ul id='runs'>{''.join(links)}</ul>", sanitize=False)
        else:
            ui.html(_head(page, opened, loader, step, rank), sanitize=False)
            ui.html(f"<div class='rows'>{page.cells}</div>", sanitize=False)
            if page.next_first is not None:
                ui.link("more rows", _address(loader, step, rank=rank, first=page.next_first)).classes("plain")


def find_runs(opened: Opened) -> list[Path]:
    """Return the files ``loader.json`` in the root, beside it and in the current folder, newest first."""
    root = opened.catalog.root
    found = {
        path.resolve()
        for folder in (root, root.parent, Path.cwd())
        for pattern in ("loader.json", "*/loader.json")
        for path in folder.glob(pattern)
        if path.is_file()
    }
    return sorted(found, key=lambda path: -path.stat().st_mtime)[:20]


def _make(opened: Opened, loader: str, step: int, rank: int | None, first: int) -> _Page:
    overrides = {} if rank is None else {"rank": rank}
    data, running, saved = _read(opened, loader, overrides)
    plan = RankPlan(data, running)
    if opened.transforms is not None:
        plan = with_transforms(plan, opened.transforms, saved)
    shown = show_step(plan, step)
    bad = [row for row in range(len(shown.refs)) if row in shown.faults or row in shown.replaced_rows]
    order = bad + [row for row in range(len(shown.refs)) if row not in bad]
    rows = order[first : first + ROWS_PER_PAGE]
    pictures = draw_cells(shown.seen, shown.refs, rows=rows, **sheet_names(data), **marks_of(shown))
    cells = [_cell(row, shown, picture, data, opened) for row, picture in zip(rows, pictures, strict=True)]
    stop = first + len(rows)
    return _Page(plan, shown, "".join(cells), stop if stop < len(order) else None)


def _read(opened: Opened, loader: str, overrides: dict[str, int]) -> tuple[OpenMixture, RunConfig, SavedTransforms]:
    """Open the data of a run where it read them, or in this root if they are no longer there."""
    try:
        return read_saved(loader, overrides=overrides)
    except ArgumentError as error:
        try:
            return read_saved(loader, root=opened.catalog.place, overrides=overrides)
        except StreamError:
            raise error from None


def _cell(row: int, shown: ShownStep, picture: Image.Image, data: OpenMixture, opened: Opened) -> str:
    ref = shown.refs[row]
    told = list(shown.faults.get(row, ()))
    told += [f"replaced: {error.reason}" for each, error in shown.replaced if each == row]
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=90)
    image = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    address = _episode_address(ref, data, opened)
    faults = f"<div class='error'>{escape('; '.join(told))}</div>" if told else ""
    place = f"{escape(ref.dataset)} {ref.split} {ref.episode}, step {ref.step}"
    link = f"<a class='plain' href='{address}'>{place}</a>" if address else place
    shape = f"<img src='{image}' alt='{escape(ref.language, quote=True)}'>"
    return (
        f"<div class='batch-row{' bad' if told else ''}' data-row='{row}'>"
        + (f"<a href='{address}'>{shape}</a>" if address else shape)
        + f"{faults}<div>{link}</div>"
        f"<div class='faint'>{escape(ref.source_file)}, id {escape(ref.episode_id)}, {escape(ref.shard)} record "
        f"{ref.record}, sample {ref.sample}, epoch {ref.epoch}</div></div>"
    )


def _episode_address(ref: SampleRef, data: OpenMixture, opened: Opened) -> str:
    """Return the address of the episode with its window marked; nothing if this root does not have it."""
    name = data.members[data.names.index(ref.dataset)].dataset.partition(":")[0]
    try:
        episodes = opened.index(name, ref.split).episodes
    except (StreamError, OSError):
        return ""
    # The run may have read another conversion of the same source.
    if ref.episode >= len(episodes) or episodes.take_texts("episode_id", np.array([ref.episode])) != [ref.episode_id]:
        return ""
    start, stop = window_of(ref, data)
    return escape(episode_url(name, ref.split, ref.episode, step=start, window=stop - start))


def _head(page: _Page, opened: Opened, loader: str, step: int, rank: int | None) -> str:
    plan, shown = page.plan, page.shown
    bad = ", ".join(map(str, shown.faults))
    verdict = (
        f"<span class='error' id='bad'>bad values in row{'s' if len(shown.faults) > 1 else ''} {bad}</span>"
        if bad
        else "<span id='bad'>no NaN, no infinity, nothing far outside of the statistics</span>"
    )
    steps = [(each, text) for each, text in ((step - 1, "‹ step {}"), (step + 1, "step {} ›")) if each >= 0]
    if plan.num_steps is not None:
        steps = [(each, text) for each, text in steps if each < plan.num_steps]
    links = " · ".join(
        f"<a class='plain' href='{_address(loader, each, rank=rank)}'>{text.format(f'{each:,}')}</a>"
        for each, text in steps
    )
    ranks = f", rank {plan.rank} of {plan.world_size}" if plan.world_size > 1 else ""
    transforms = plan.running.transforms
    seen = f"after the transforms {escape(repr(transforms))}" if transforms else _NOT_TRANSFORMED
    root = plan.data.root
    elsewhere = "" if root == opened.catalog.place else f" The run reads {root}; links lead to the same episodes here."
    return (
        f"<p>{len(shown.refs)} rows{ranks}: {verdict}</p><p>{links}</p>"
        f"<p class='faint'>The rows as the loader gives them, {seen}.{escape(elsewhere)}</p>"
    )


def _form(loader: str, step: int, rank: int | None) -> str:
    hidden = "" if rank is None else f"<input type='hidden' name='rank' value='{rank}'>"
    return (
        "<form class='run-form' action='/run'><label>loader.json <input name='loader' size='60' required "
        f"value='{escape(loader, quote=True)}'></label><label>step <input name='step' type='number' min='0' "
        f"value='{step}' style='width: 9em'></label>{hidden}<button>show</button></form>"
    )


def _address(loader: str, step: int, *, rank: int | None = None, first: int = 0) -> str:
    asked = {"loader": loader, "step": step, "rank": rank, "first": first or None}
    return escape("/run?" + urlencode({name: value for name, value in asked.items() if value is not None}))
