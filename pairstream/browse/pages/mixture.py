"""A mixture: the weight of each dataset over the steps, samples of an epoch, and what filters leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from nicegui import ui

from pairstream.browse.browsed_root import BrowsedRoot, dataset_url
from pairstream.browse.drawing import draw_shares
from pairstream.browse.shell import page_frame
from stream.base.errors import ArgumentError, StreamError
from stream.loader.open_mixture import OpenMixture, open_mixture
from stream.loader.sample_spec import SampleSpec
from stream.order.filters import MISSING
from stream.order.mixture import packaged_mixtures

_STEPS = 1000
"""Steps whose epochs of each dataset are shown."""


@dataclass(frozen=True)
class MixtureForm:
    """Arguments of ``make_loader`` as texts.

    Attributes:
        mixture: Name, names with commas, JSON of a mapping or schedule, or YAML file.
        split: Role or split expression.
        batch_size: Rows of a batch.
        filters: JSON of ``filters``, or empty.
        missing: Treatment of datasets that lack a column of the filters.
        marks: Whether the marked episodes are the argument ``episodes``.
    """

    mixture: str
    split: str = "train"
    batch_size: int = 64
    filters: str = ""
    missing: str = "error"
    marks: bool = False

    @classmethod
    def from_address(cls, root: BrowsedRoot, parameters: Mapping[str, str]) -> MixtureForm:
        """Return the arguments in an address; without a mixture, all datasets of the root."""
        size_text = parameters.get("batch_size", "")
        has_size = size_text.isascii() and size_text.isdigit() and len(size_text) < 8
        return cls(
            mixture=parameters.get("mixture") or ",".join(root.names),
            split=parameters.get("split") or "train",
            batch_size=(int(size_text) if has_size else 0) or 64,
            filters=parameters.get("filters", ""),
            missing=parameters["missing"] if parameters.get("missing") in MISSING else "error",
            marks=parameters.get("marks") == "True",
        )

    def open(self, root: BrowsedRoot) -> tuple[OpenMixture, dict[str, dict[str, Any]]]:
        """Open the mixture and count its samples, as ``make_loader`` and ``Loader.describe`` do; raise as they do.

        Raises:
            ArgumentError: JSON is broken, or a file is named where other machines reach the pages.
        """
        is_json = self.mixture.strip()[:1] in ("{", "[")
        if not root.takes_paths and ("/" in self.mixture or Path(self.mixture).suffix in (".yaml", ".yml")):
            raise ArgumentError("mixture: pages that other machines reach open no files; give names or a mapping")
        mixture = _read_json(self.mixture, "mixture") if is_json else self.mixture
        spec_options: dict[str, Any] = {"missing": self.missing}
        if self.filters.strip():
            spec_options["filters"] = _read_json(self.filters, "filters")
        if self.marks and len(root.marks):
            spec_options["episodes"] = json.loads(root.marks.to_json())
        spec = SampleSpec(**spec_options)
        opened = open_mixture(root.catalog.location, mixture, split=self.split, spec=spec, batch_size=self.batch_size)
        return opened, opened.overview()


def show(root: BrowsedRoot, form: MixtureForm) -> None:
    """Build the page."""
    with page_frame(root, "Mixture"):
        with ui.row().classes("items-center w-full"):
            known_names = [*packaged_mixtures(), *root.names]
            mixture_input = ui.input("Mixture", value=form.mixture, autocomplete=known_names).classes("w-80")
            split_input = ui.input("Split", value=form.split).classes("w-28")
            size_input = ui.number("Batch size", value=form.batch_size, min=1, precision=0).classes("w-24")
            hint = '[["language", "contains", "cup"]]'
            filters_input = ui.input("Filters", value=form.filters, placeholder=hint).classes("w-72")
            missing_select = ui.select(list(MISSING), value=form.missing, label="Missing columns").classes("w-32")
            marks_checkbox = ui.checkbox("Marks", value=form.marks)
            open_button = ui.button("Open").props("dense no-caps").mark("open")
        for field in (mixture_input, split_input, filters_input, missing_select, size_input):
            field.props("dense")
        status_label = ui.label().classes("faint").mark("told")
        content = ui.column().classes("w-full")

        async def open_form() -> None:
            new_form = MixtureForm(
                mixture=str(mixture_input.value or ""),
                split=str(split_input.value or "train"),
                batch_size=int(size_input.value or 64),
                filters=str(filters_input.value or ""),
                missing=str(missing_select.value),
                marks=bool(marks_checkbox.value),
            )
            ui.navigate.history.replace(f"/mixture?{urlencode(vars(new_form))}")
            status_label.text = "opening"
            status_label.classes(remove="error")
            try:
                mixture, overview = await asyncio.to_thread(new_form.open, root)
            except (StreamError, OSError) as error:
                status_label.text = str(error)
                status_label.classes("error")
                content.clear()
                return
            num_samples, batch_size = sum(summary["samples"] for summary in overview.values()), new_form.batch_size
            status_label.text = (
                f"{len(overview)} datasets, {num_samples:,} samples an epoch, "
                f"{-(-num_samples // batch_size):,} steps of {batch_size}"
            )
            content.clear()
            with content:
                shares = draw_shares(mixture.names, mixture.phase_weights, mixture.mixture.until)
                ui.html(shares, sanitize=False).mark("shares")
                ui.html(table_html(root, mixture, overview, batch_size), sanitize=False)

        open_button.on_click(open_form)
        for field in (mixture_input, split_input, filters_input):
            field.on("keydown.enter", open_form)
        ui.timer(0, open_form, once=True)


def table_html(
    root: BrowsedRoot, mixture: OpenMixture, overview: Mapping[str, Mapping[str, Any]], batch_size: int
) -> str:
    """Return a table of the members, every text escaped."""
    until, phases = mixture.mixture.until, np.array(mixture.phase_weights)
    shares = [f"share {end}" for end in (*(f"to {step:,}" for step in until), "on")] if until else ["share"]
    headings = ("dataset", *shares, "samples", f"epochs in {_STEPS:,} steps", "episodes", "left out", "unknown")
    # Steps of each phase among the first _STEPS.
    phase_lengths = np.diff(np.minimum([0, *until, _STEPS], _STEPS))
    table_rows = []
    for member_number, (name, summary) in enumerate(overview.items()):
        drawn = batch_size * float(phases[:, member_number] @ phase_lengths)
        title = escape(name)
        if name in root.names:
            title = f'<a class="plain" href="{dataset_url(name, next(iter(summary["ranges"]), ""))}">{title}</a>'
        conditions, unknown_episodes = summary["left_out_by_condition"], summary["unknown_episodes"]
        left_out = [f"{count:,} by {escape(reason)}" for reason, count in conditions.items() if count]
        unknown = [f"{count:,} {escape(reason)}" for reason, count in unknown_episodes.items() if count]
        numbers = [
            *(f"{share:.2%}" for share in phases[:, member_number]),
            f"{summary['samples']:,}",
            f"{drawn / summary['samples']:,.2f}" if summary["samples"] else "none",
            f"{summary['remaining_episodes']:,} of {summary['episodes']:,}",
        ]
        cells = [
            f"<td>{title} <span class='faint'>{escape(summary['split'])}</span></td>",
            *(f'<td class="number">{number}</td>' for number in numbers),
            f"<td>{'<br>'.join(left_out) or '<span class=faint>nothing</span>'}</td>",
            f"<td>{', '.join(unknown)}</td>",
        ]
        table_rows.append(f"<tr>{''.join(cells)}</tr>")
    text_columns = ("dataset", "left out", "unknown")
    heading_cells = "".join(f"<th{'' if name in text_columns else ' class=number'}>{name}</th>" for name in headings)
    return f'<table class="plain" id="members"><tr>{heading_cells}</tr>{"".join(table_rows)}</table>'


def _read_json(text: str, argument: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{argument}: {text!r:.100} is not JSON ({error})") from None
