"""A step of a run: the rows of its batch as the model got them, with their faults and origin."""

from __future__ import annotations

from html import escape
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
from fastapi.responses import HTMLResponse

from pairstream.browse.browsed_root import BrowsedRoot, episode_url
from pairstream.browse.shell import plain_page
from pairstream.replay.batch_html import rows_html
from pairstream.replay.shown_step import ShownStep, drawing_options, show_step, with_transforms
from pairstream.view.window import open_run, window_of
from stream.base.errors import ArgumentError, StreamError
from stream.loader.open_mixture import OpenMixture
from stream.loader.rank_plan import RankPlan
from stream.loader.saved import SavedTransforms
from stream.order.reference import SampleRef

_ROWS_PER_PAGE = 64
_NO_RUN = (
    "<p>No loader.json is in this root, next to it, or in the current folder. "
    "<code>loader.save('run/loader.json')</code> writes one; give its path above.</p>"
)
_NOT_TRANSFORMED = "before the run's transforms, if any; start the browser with --transforms MODULE:NAME to see them"


def show(
    root: BrowsedRoot, loader: str = "", *, step: int = 0, rank: int | None = None, first: int = 0
) -> HTMLResponse:
    """Return the page of a step of a ``loader.json``, or a list of the files near the root without one.

    Rows with bad values come first; ``first`` is the position of the first row to show.

    Raises:
        ArgumentError: The file may not be opened, or there is no such step or rank.
        StateError: The file is not a loader.json, or belongs to other data.
        RecordError: A record of the step is damaged.
    """
    nearby_runs = list(map(str, find_runs(root)))
    if loader:
        if not root.takes_paths and loader not in nearby_runs:
            raise ArgumentError(f"{loader:.200}: other machines reach this page, so it opens only files near the root")
        content = _make(root, loader, step, rank, first)
    else:
        links = [f"<li><a class='plain' href='{_address(run, 0)}'>{escape(run)}</a></li>" for run in nearby_runs]
        runs = f"<p class='faint'>Runs near this root, the newest first:</p><ul id='runs'>{''.join(links)}</ul>"
        content = runs if links else _NO_RUN
    form = _form(loader or next(iter(nearby_runs), ""), step, rank)
    return plain_page(root, f"Step {step:,}" if loader else "Run", form + content, address="/run")


def find_runs(root: BrowsedRoot) -> list[Path]:
    """Return the files ``loader.json`` in the root, next to it and in the current folder, newest first."""
    root_folder = root.catalog.root
    run_paths = {
        path.resolve()
        for folder in (root_folder, root_folder.parent, Path.cwd())
        for pattern in ("loader.json", "*/loader.json")
        for path in folder.glob(pattern)
        if path.is_file()
    }
    return sorted(run_paths, key=lambda path: -path.stat().st_mtime)[:20]


def _make(root: BrowsedRoot, loader: str, step: int, rank: int | None, first_row: int) -> str:
    """Return the HTML of a step."""
    rank_plan, saved_transforms = _open(root, loader, rank)
    if root.transforms is not None:
        rank_plan = with_transforms(rank_plan, root.transforms, saved_transforms)
    shown, mixture = show_step(rank_plan, step), rank_plan.mixture
    options = drawing_options(shown, mixture)
    row_order = sorted(range(len(shown.refs)), key=lambda row: row not in options["faults"])
    page_rows = row_order[first_row : first_row + _ROWS_PER_PAGE]
    links = {row: _episode_address(shown.refs[row], mixture, root) for row in page_rows}
    rows = rows_html(shown.seen, shown.refs, rows=page_rows, links=links, **options)
    more, end_row = "", first_row + len(page_rows)
    if end_row < len(row_order):
        more = f"<a class='plain' href='{_address(loader, step, rank=rank, first=end_row)}'>more rows</a>"
    return f"{_head(rank_plan, shown, root, loader, rank)}{rows}{more}"


def _open(root: BrowsedRoot, loader: str, rank: int | None) -> tuple[RankPlan, SavedTransforms]:
    """Open a run in its root, or in the browsed root if the run's root no longer exists."""
    try:
        return open_run(loader, rank=rank)
    except ArgumentError as error:
        try:
            return open_run(loader, root=root.catalog.location, rank=rank)
        except StreamError:
            raise error from None


def _episode_address(sample_ref: SampleRef, mixture: OpenMixture, root: BrowsedRoot) -> str:
    """Return the address of the episode with its window marked, or "" if this root lacks the episode."""
    dataset_name = mixture.members[mixture.names.index(sample_ref.dataset)].dataset.partition(":")[0]
    try:
        episodes = root.index(dataset_name, sample_ref.split).episodes
    except (StreamError, OSError):
        return ""
    # The run may have read another conversion of the same source.
    number, episode_id = sample_ref.episode, sample_ref.episode_id
    if number >= len(episodes) or episodes.take_texts("episode_id", np.array([number])) != [episode_id]:
        return ""
    start, stop = window_of(sample_ref, mixture)
    return episode_url(dataset_name, sample_ref.split, number, step=start, window=stop - start)


def _head(rank_plan: RankPlan, shown: ShownStep, root: BrowsedRoot, loader: str, rank: int | None) -> str:
    step = shown.step
    verdict = "<span id='bad'>no NaN, no infinity, nothing far outside of the statistics</span>"
    if shown.faults:
        plural, bad_rows = "s" if len(shown.faults) > 1 else "", ", ".join(map(str, shown.faults))
        verdict = f"<span class='error' id='bad'>bad values in row{plural} {bad_rows}</span>"
    links = " · ".join(
        f"<a class='plain' href='{_address(loader, number, rank=rank)}'>{label}</a>"
        for number, label in ((step - 1, f"‹ step {step - 1:,}"), (step + 1, f"step {step + 1:,} ›"))
        if number >= 0 and (rank_plan.num_steps is None or number < rank_plan.num_steps)
    )
    rank_text = f", rank {rank_plan.rank} of {rank_plan.world_size}" if rank_plan.world_size > 1 else ""
    transforms = rank_plan.run_config.transforms
    seen_text = f"after the transforms {escape(repr(transforms))}" if transforms else _NOT_TRANSFORMED
    elsewhere = ""
    if rank_plan.mixture.root != root.catalog.location:
        elsewhere = f" The run reads {rank_plan.mixture.root}; links lead to the same episodes here."
    return (
        f"<p>{len(shown.refs)} rows{rank_text}: {verdict}</p><p>{links}</p>"
        f"<p class='faint'>The rows as the loader gives them, {seen_text}.{escape(elsewhere)}</p>"
    )


def _form(loader: str, step: int, rank: int | None) -> str:
    rank_input = "" if rank is None else f"<input type='hidden' name='rank' value='{rank}'>"
    return (
        "<form class='run-form' action='/run'><label>loader.json <input name='loader' size='60' required "
        f"value='{escape(loader, quote=True)}'></label><label>step <input name='step' type='number' min='0' "
        f"value='{step}' style='width: 9em'></label>{rank_input}<button>show</button></form>"
    )


def _address(loader: str, step: int, *, rank: int | None = None, first: int = 0) -> str:
    parameters = {"loader": loader, "step": step, "rank": rank, "first": first or None}
    query_text = urlencode({parameter: value for parameter, value in parameters.items() if value is not None})
    return escape(f"/run?{query_text}")
