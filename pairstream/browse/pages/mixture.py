"""A mixture: the weight of each dataset over the steps, samples of an epoch, and what choices leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from nicegui import ui

from convert.report import count_noun
from pairstream.browse.browsed_root import BrowsedRoot, dataset_url
from pairstream.browse.markup import name_html
from pairstream.browse.shell import LatestWish, page_frame
from stream.base.errors import ArgumentError, StreamError
from stream.loader.open_mixture import OpenMixture, open_mixture
from stream.loader.sample_spec import SampleSpec
from stream.order.mixture import packaged_mixtures
from stream.sample.filters import MISSING_COLUMN
from stream.sample.select import Select

_STEPS = 1000
"""Steps whose epochs of each dataset are shown."""


def _open(root: BrowsedRoot, form: Mapping[str, Any]) -> tuple[OpenMixture, dict[str, dict[str, Any]]]:
    """Open the mixture of a form, and count its samples, as ``make_loader`` and ``Loader.describe`` do.

    Raises:
        ArgumentError: JSON is broken, or a file is named where other machines reach the pages.
    """
    mixture, is_json = form["mixture"], form["mixture"].strip()[:1] in ("{", "[")
    if not root.takes_paths and ("/" in mixture or Path(mixture).suffix in (".yaml", ".yml")):
        raise ArgumentError("mixture: pages that other machines reach open no files; give names or a mapping")
    where = _read_json(form["where"], "where") if form["where"].strip() else None
    episodes = json.loads(root.marks.to_json()) if form["marks"] and len(root.marks) else None
    spec = SampleSpec(select=Select(where=where, episodes=episodes, on_missing_column=form["on_missing_column"]))
    chosen = _read_json(mixture, "mixture") if is_json else mixture
    choice = {"split": form["split"], "batch_size": form["batch_size"]}
    opened = open_mixture(root.catalog.location, chosen, spec=spec, **choice)
    return opened, opened.overview()


def show(
    root: BrowsedRoot,
    mixture: str = "",
    split: str = "train",
    batch_size: int = 64,
    where: str = "",
    on_missing_column: str = "error",
    marks: bool = False,
) -> None:
    """Build the page of arguments of ``make_loader``, of a mixture and ``where`` as JSON too.

    Without a mixture, it is all datasets of the root. ``marks`` are the ``episodes`` of ``stream.Select``.
    """
    with page_frame(root, "Mixture", address="/mixture"):
        with ui.row().classes("items-center w-full"):
            known_names = [*packaged_mixtures(), *root.names]
            mixture_input = ui.input(
                "Mixture", value=mixture or ",".join(root.names), autocomplete=known_names
            ).classes("w-80 grow")
            split_input = ui.input("Split", value=split).classes("w-28")
            size_input = ui.number("Batch size", value=batch_size, min=1, precision=0).classes("w-24")
            hint = '[["language", "contains", "cup"]]'
            where_input = ui.input("Where", value=where, placeholder=hint).classes("w-72")
            policy = on_missing_column if on_missing_column in MISSING_COLUMN else "error"
            policy_select = ui.select(list(MISSING_COLUMN), value=policy, label="On missing column").classes("w-36")
            marks_checkbox = ui.checkbox("Marks", value=marks)
            open_button = ui.button("Open").props("dense no-caps")
        for field in (mixture_input, split_input, where_input, policy_select, size_input):
            field.props("dense")
        status_label = ui.label().classes("faint")
        content = ui.column().classes("w-full")

        begin_wish = LatestWish()

        async def open_form() -> None:
            is_last = begin_wish()
            size = int(size_input.value or 64)
            form = {"mixture": mixture_input.value or "", "split": split_input.value or "train", "batch_size": size}
            form |= {
                "where": where_input.value or "",
                "on_missing_column": policy_select.value,
                "marks": marks_checkbox.value,
            }
            ui.navigate.history.replace(f"/mixture?{urlencode(form)}")
            status_label.text = "opening"
            status_label.classes(remove="error")
            try:
                opened, overview = await asyncio.to_thread(_open, root, form)
            except (StreamError, OSError) as error:
                if not is_last():
                    return
                status_label.text = str(error)
                status_label.classes("error")
                content.clear()
                return
            if not is_last():
                return
            num_samples = sum(summary["samples"] for summary in overview.values())
            steps = f"{count_noun(-(-num_samples // size), 'step')} of {size}"
            status_label.text = f"{len(overview)} datasets, {num_samples:,} samples an epoch, {steps}"
            content.clear()
            with content:
                table = table_html(root, opened, overview, size)
                ui.html(table, sanitize=False).classes("scroll").props("tabindex=0")

        open_button.on_click(open_form)
        for field in (mixture_input, split_input, where_input):
            field.on("keydown.enter", open_form)
        ui.timer(0, open_form, once=True)


def table_html(
    root: BrowsedRoot, mixture: OpenMixture, overview: Mapping[str, Mapping[str, Any]], batch_size: int
) -> str:
    """Return a table of the members with their shares as bars, every text escaped."""
    until, phases = mixture.mixture.until, np.array(mixture.phase_weights)
    shares = [f"share {end}" for end in (*(f"to {step:,}" for step in until), "on")] if until else ["share"]
    headings = ("dataset", *shares, "samples", f"epochs in {_STEPS:,} steps", "episodes", "left out")
    has_unknown = any(any(summary["unknown_episodes"].values()) for summary in overview.values())
    headings += ("unknown",) * has_unknown
    # Steps of each phase among the first _STEPS.
    phase_lengths = np.diff(np.minimum([0, *until, _STEPS], _STEPS))
    table_rows = []
    for member_number, (name, summary) in enumerate(overview.items()):
        drawn = batch_size * float(phases[:, member_number] @ phase_lengths)
        title = name_html(name)
        if name in root.names:
            title = f'<a class="plain" href="{dataset_url(name, next(iter(summary["ranges"]), ""))}">{title}</a>'
        conditions, unknown_episodes = summary["left_out_by_condition"], summary["unknown_episodes"]
        left_out = [f"{count:,} by {escape(reason)}" for reason, count in conditions.items() if count]
        unknown = [f"{count:,} {escape(reason)}" for reason, count in unknown_episodes.items() if count]
        numbers = [
            f"{summary['samples']:,}",
            f"{drawn / summary['samples']:,.2f}" if summary["samples"] else "none",
            f"{summary['remaining_episodes']:,} of {summary['episodes']:,}",
        ]
        # The longest bar of a phase fills its cell, so that 29 small shares can be compared.
        bars = "".join(
            f'<td class="number share" style="--share: {share / largest:.3f}">{share:.2%}</td>'
            for share, largest in zip(phases[:, member_number], phases.max(1), strict=True)
        )
        number_cells = bars + "".join(f'<td class="number">{number}</td>' for number in numbers)
        split_html, reasons = f"<span class='faint'>{escape(summary['split'])}</span>", "<br>".join(left_out)
        reasons = reasons or "<span class=faint>nothing</span>"
        unknown_cell = f"<td>{', '.join(unknown)}</td>" * has_unknown
        table_rows.append(f"<td>{title} {split_html}</td>{number_cells}<td>{reasons}</td>{unknown_cell}")
    text_columns = ("dataset", "left out", "unknown")
    heading_cells = "".join(f"<th{'' if name in text_columns else ' class=number'}>{name}</th>" for name in headings)
    rows = "".join(f"<tr>{row}</tr>" for row in (heading_cells, *table_rows))
    return f'<table class="plain" id="members">{rows}</table>'


def _read_json(text: str, argument: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{argument}: {text!r:.100} is not JSON ({error})") from None
