"""A mixture: the weight of each dataset over the steps, samples of an epoch, and what filters leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from pairstream.browse.drawing import draw_shares
from pairstream.browse.opened import Opened, dataset_url
from pairstream.browse.shell import page_frame
from stream.base.errors import ArgumentError, StreamError
from stream.loader.open_mixture import open_mixture
from stream.loader.sample_spec import SampleSpec
from stream.order.filters import MISSING
from stream.order.mixture import packaged_mixtures

_STEPS = 1000
"""Steps whose epochs of each dataset are shown."""


@dataclass(frozen=True)
class Asked:
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
    def of(cls, opened: Opened, given: Mapping[str, str]) -> Asked:
        """Return the arguments in an address; without a mixture, all datasets of the root."""
        size = given.get("batch_size", "")
        return cls(
            mixture=given.get("mixture") or ",".join(opened.names),
            split=given.get("split") or "train",
            batch_size=int(size) if size.isascii() and size.isdigit() and 0 < len(size) < 8 and int(size) else 64,
            filters=given.get("filters", ""),
            missing=given["missing"] if given.get("missing") in MISSING else "error",
            marks=given.get("marks") == "True",
        )

    def read(self, opened: Opened) -> tuple[Any, dict[str, Any]]:
        """Return the mixture and the options; raise ArgumentError for what is no JSON, or a file where none may be."""
        mixture: Any = _read_json(self.mixture, "mixture") if self.mixture.strip()[:1] in ("{", "[") else self.mixture
        if isinstance(mixture, Mapping | Sequence) and not opened.takes_paths and "/" in self.mixture:
            raise ArgumentError("mixture: pages that other machines reach open no files; give names or a mapping")
        if isinstance(mixture, str) and not opened.takes_paths and Path(mixture).suffix in (".yaml", ".yml"):
            raise ArgumentError(f"mixture {mixture!r}: pages that other machines reach open no files")
        options: dict[str, Any] = {"missing": self.missing}
        if self.filters.strip():
            options["filters"] = _read_json(self.filters, "filters")
        if self.marks and len(opened.marks):
            options["episodes"] = json.loads(opened.marks.to_json())
        return mixture, options


@dataclass(frozen=True)
class Opening:
    """A mixture that was opened.

    Attributes:
        names: Members.
        phases: Share of each member in each phase.
        until: Step at which each phase but the last ends.
        overview: ``Loader.describe()``.
        batch_size: Rows of a batch.
    """

    names: tuple[str, ...]
    phases: tuple[tuple[float, ...], ...]
    until: tuple[int, ...]
    overview: dict[str, dict[str, Any]]
    batch_size: int

    @property
    def samples(self) -> int:
        """Samples of one epoch of all members."""
        return sum(each["samples"] for each in self.overview.values())


def open_asked(opened: Opened, asked: Asked) -> Opening:
    """Open a mixture as ``make_loader`` does; raises as it does."""
    mixture, options = asked.read(opened)
    data = open_mixture(
        opened.catalog.place, mixture, split=asked.split, options=SampleSpec(**options), batch_size=asked.batch_size
    )
    phases = tuple(tuple(phase) for phase in data.phase_weights)
    return Opening(data.names, phases, data.mixture.until, data.overview(), asked.batch_size)


def show(opened: Opened, asked: Asked) -> None:
    """Build the page."""
    with page_frame(opened, "Mixture"):
        with ui.row().classes("items-center w-full"):
            known = [*packaged_mixtures(), *opened.names]
            mixture = ui.input("Mixture", value=asked.mixture, autocomplete=known).props("dense").classes("w-80")
            split = ui.input("Split", value=asked.split).props("dense").classes("w-28")
            size = ui.number("Batch size", value=asked.batch_size, min=1, precision=0).props("dense").classes("w-24")
            filters = ui.input("Filters", value=asked.filters, placeholder='[["language", "contains", "cup"]]')
            filters.props("dense").classes("w-72")
            missing = ui.select(list(MISSING), value=asked.missing, label="Missing columns").props("dense")
            missing.classes("w-32")
            marks = ui.checkbox("Marks", value=asked.marks)
            button = ui.button("Open").props("dense no-caps").mark("open")
        for each, name in ((mixture, "mixture"), (split, "split"), (filters, "filters"), (missing, "missing")):
            each.mark(name)
        told = ui.label().classes("faint").mark("told")
        content = ui.column().classes("w-full")

        async def open_it() -> None:
            now = Asked(
                mixture=str(mixture.value or ""),
                split=str(split.value or "train"),
                batch_size=int(size.value or 64),
                filters=str(filters.value or ""),
                missing=str(missing.value),
                marks=bool(marks.value),
            )
            ui.navigate.history.replace(f"/mixture?{urlencode(vars(now))}")
            told.text = "opening"
            told.classes(remove="error")
            try:
                found = await asyncio.to_thread(open_asked, opened, now)
            except (StreamError, OSError) as error:
                told.text = str(error)
                told.classes("error")
                content.clear()
                return
            told.text = (
                f"{len(found.names)} datasets, {found.samples:,} samples an epoch, "
                f"{-(-found.samples // found.batch_size):,} steps of {found.batch_size}"
            )
            content.clear()
            with content:
                ui.html(draw_shares(found.names, found.phases, found.until), sanitize=False).mark("shares")
                ui.html(table_html(opened, found), sanitize=False)

        button.on_click(open_it)
        for each in (mixture, split, filters):
            each.on("keydown.enter", open_it)
        ui.timer(0, open_it, once=True)


def table_html(opened: Opened, found: Opening) -> str:
    """Return a table of the members, every text escaped."""
    ends = [*(f"to {until:,}" for until in found.until), "on"]
    shares = [f"share {end}" for end in ends] if found.until else ["share"]
    heads = ("dataset", *shares, "samples", f"epochs in {_STEPS:,} steps", "episodes", "left out", "unknown")
    rows = []
    for place, (name, each) in enumerate(found.overview.items()):
        drawn = found.batch_size * sum(
            phase[place] * (min(end, _STEPS) - min(begin, _STEPS))
            for phase, begin, end in zip(found.phases, [0, *found.until], [*found.until, _STEPS], strict=True)
        )
        epochs = f"{drawn / each['samples']:,.2f}" if each["samples"] else "none"
        split = next(iter(each["ranges"]), "")
        base = name if name in opened.names else ""
        title = f'<a class="plain" href="{dataset_url(base, split)}">{escape(name)}</a>' if base else escape(name)
        left = [f"{count:,} by {escape(reason)}" for reason, count in each["left_out_by_condition"].items() if count]
        lost = [f"{count:,} {escape(reason)}" for reason, count in each["unknown_episodes"].items() if count]
        cells = [
            f"<td>{title} <span class='faint'>{escape(each['split'])}</span></td>",
            *(f'<td class="number">{phase[place]:.2%}</td>' for phase in found.phases),
            f'<td class="number">{each["samples"]:,}</td>',
            f'<td class="number">{epochs}</td>',
            f'<td class="number">{each["remaining_episodes"]:,} of {each["episodes"]:,}</td>',
            f"<td>{'<br>'.join(left) or '<span class=faint>nothing</span>'}</td>",
            f"<td>{', '.join(lost)}</td>",
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    texts = ("dataset", "left out", "unknown")
    head = "".join(f"<th{'' if name in texts else ' class=number'}>{name}</th>" for name in heads)
    return f'<table class="plain" id="members"><tr>{head}</tr>{"".join(rows)}</table>'


def _read_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{what}: {text!r:.100} is no JSON ({error})") from None
