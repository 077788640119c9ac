"""A split of a dataset: its episodes as a table, and on further tabs histograms, lengths, instructions and findings."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from html import escape
from typing import Any
from urllib.parse import urlencode

import numpy as np
from nicegui import ui

from pairstream.browse.doctor import Doctor
from pairstream.browse.drawing import draw_comparison, draw_counts
from pairstream.browse.episodes import EpisodeTable, Query, read_filter
from pairstream.browse.facts import DatasetFacts
from pairstream.browse.histograms import SCALES, VECTORS, compare
from pairstream.browse.opened import Opened, dataset_url, episode_url
from pairstream.browse.pages.doctor import show_findings
from pairstream.browse.shell import page_frame
from stream.base.errors import StreamError
from stream.order.filters import OPERATORS

TABS = ("Episodes", "Histograms", "Lengths", "Instructions", "Findings")
_PAGE = 20
_SHOWN = ("num_steps", "language", "status")
_TEXTS = 200
"""Instructions that are listed."""
_BINS = 40

_CELLS = {
    "picture": """<a :href="props.row.address"><img :src="props.row.picture" loading="lazy"
        style="height: 56px; min-width: 56px; background: #eef" onerror="this.style.visibility = 'hidden'"></a>""",
    "episode": """<a class="plain" :href="props.row.address">{{ props.value }}</a>""",
    "mark": """<q-checkbox dense :model-value="props.value" :aria-label="'mark ' + props.row.episode"
        @update:model-value="value => $parent.$emit('mark', [props.row.episode, value])" />""",
    "findings": """<span class="warning">{{ props.value }}</span>""",
    "language": """<div style="white-space: normal; min-width: 16em">{{ props.value }}</div>""",
}
"""Content of the cells of some columns, as Vue templates."""


async def show(opened: Opened, doctor: Doctor, name: str, split: str, *, state: str, tab: str) -> None:
    """Build the page of a split.

    Args:
        opened: Root.
        doctor: Newest findings.
        name: Dataset.
        split: Split.
        state: Search, filters, order and columns of the table as JSON, as the page writes them into its address.
        tab: Tab that is open.

    Raises:
        ArgumentError: There is no such dataset or split.
        FormatError: The index is damaged.
    """
    dataset = opened.dataset(name)
    table = opened.table(name, split)
    facts = DatasetFacts.of(dataset)
    page = _Page(opened, doctor, table, name, split, _View.read(state, table))
    with page_frame(opened, f"{name}, {split}"):
        with ui.row().classes("items-center gap-4"):
            for other in dataset.shards:
                if other != split:
                    ui.link(other, dataset_url(name, other)).classes("plain")
            ui.label(
                " · ".join([f"{len(table):,} episodes", f"{len(table.index.steps):,} steps", *facts.notes])
            ).classes("faint")
        chosen = tab if tab in TABS else TABS[0]
        with ui.tabs().props("align=left dense no-caps") as tabs:
            for each in TABS:
                ui.tab(each)
        tabs.value = chosen
        content = ui.column().classes("w-full")

        async def open_tab(given: str) -> None:
            content.clear()
            page.tab = given
            page.remember()
            with content:
                await page.build(given)

        tabs.on_value_change(lambda event: open_tab(event.value))
        if chosen == TABS[0] and not page.view.query.filters:
            # At once, a part of the page; what may take longer comes after it.
            with content:
                await page.build(chosen)
        else:
            ui.timer(0, lambda: open_tab(chosen), once=True)


@dataclass
class _View:
    """State of the table: query, and columns that are shown."""

    query: Query
    columns: tuple[str, ...]

    @classmethod
    def read(cls, state: str, table: EpisodeTable) -> _View:
        """Return the state that an address holds; what does not fit this split is left out."""
        shown = tuple(each for each in (*_SHOWN, table.success, "mean of motion") if each in table.columns)
        try:
            given = json.loads(state)
            filters = tuple((str(a), str(b), c) for a, b, c in given.get("filters", []))
            columns = tuple(each for each in given.get("columns", shown) if each in table.columns)
            sort = given.get("sort") if given.get("sort") in table.columns else "episode"
            search = str(given.get("search", ""))
            return cls(Query(search=search, filters=filters, sort=sort, descending=bool(given.get("down"))), columns)
        except (ValueError, TypeError, AttributeError):
            return cls(Query(), shown)

    def to_json(self) -> str:
        query = self.query
        content = {"search": query.search, "filters": query.filters, "sort": query.sort, "down": query.descending}
        return json.dumps({**content, "columns": self.columns}, separators=(",", ":"))


@dataclass(eq=False)
class _Page:
    """A page that is shown to one visitor."""

    opened: Opened
    doctor: Doctor
    table: EpisodeTable
    name: str
    split: str
    view: _View
    tab: str = TABS[0]
    first: int = 0
    """Number of the first row that the table shows."""
    rows: int = _PAGE

    def remember(self) -> None:
        """Write the state of the page into its address."""
        state = {"tab": self.tab, "state": self.view.to_json()}
        ui.navigate.history.replace(f"{dataset_url(self.name, self.split)}?{urlencode(state)}")

    async def build(self, tab: str) -> None:
        """Build the content of a tab."""
        try:
            if tab == "Episodes":
                await self._build_episodes()
            elif tab == "Histograms":
                await self._build_histograms()
            elif tab == "Lengths":
                self._build_lengths()
            elif tab == "Instructions":
                await self._build_instructions()
            else:
                show_findings(self.opened, self.doctor, [self.name], split=self.split)
        except (StreamError, OSError) as error:
            ui.label(str(error)).classes("error")

    async def _build_episodes(self) -> None:
        with ui.row().classes("items-center w-full"):
            search = ui.input("Instruction, id or number", value=self.view.query.search).props(
                "dense clearable debounce=300"
            )
            search.classes("w-64").mark("search")
            column = ui.select(self.table.filter_columns, with_input=True, label="Filter").props("dense")
            column.classes("w-56").mark("filter-column")
            how = ui.select(list(OPERATORS), value="==").props("dense").classes("w-28").mark("filter-how")
            value = ui.input("Value").props("dense").classes("w-36").mark("filter-value")
            ui.button("Add", on_click=lambda: add()).props("dense flat no-caps").mark("filter-add")
            ui.select(
                self.table.columns,
                value=list(self.view.columns),
                multiple=True,
                label="Columns",
                on_change=lambda event: change(columns=tuple(event.value)),
            ).props("dense options-dense").classes("w-56").mark("columns")
        chips = ui.row().classes("items-center gap-1")
        told = ui.label().classes("faint").mark("found")
        grid = ui.table(columns=[], rows=[], row_key="episode", pagination={"rowsPerPage": self.rows})
        grid.props('flat dense binary-state-sort :rows-per-page-options="[20, 50, 100]"').classes("w-full").mark(
            "episodes"
        )
        for cell, slot in _CELLS.items():
            grid.add_slot(f"body-cell-{cell}", f'<q-td :props="props">{slot}</q-td>')

        async def refresh() -> None:
            query = self.view.query
            try:
                found = await asyncio.to_thread(self.table.find, query)
            except (StreamError, OSError) as error:
                told.text = str(error)
                told.classes("error")
                return
            told.classes(remove="error")
            self.first = min(self.first, max(0, (len(found.episodes) - 1) // self.rows * self.rows))
            here = found.episodes[self.first : self.first + self.rows]
            told.text = f"{len(found.episodes):,} of {len(self.table):,} episodes"
            if found.samples is not None:
                told.text += f", {found.samples:,} of {found.all_samples:,} samples"
            grid.columns = self._columns()
            grid.rows = await asyncio.to_thread(self._rows, here)
            grid.pagination = {
                "page": self.first // self.rows + 1,
                "rowsPerPage": self.rows,
                "rowsNumber": len(found.episodes),
                "sortBy": query.sort,
                "descending": query.descending,
            }
            chips.clear()
            with chips:
                for each in query.filters:
                    ui.chip(f"{each[0]} {each[1]} {json.dumps(each[2], ensure_ascii=False)}", removable=True).props(
                        "dense text-color=white"
                    ).on("remove", lambda _, each=each: change(without=each))

        async def change(
            *, columns: tuple[str, ...] | None = None, without: tuple[str, str, Any] | None = None, **query: Any
        ) -> None:
            if columns is not None:
                self.view.columns = columns
            if without is not None:
                query["filters"] = tuple(each for each in self.view.query.filters if each != without)
            self.view.query = replace(self.view.query, **query)
            self.remember()
            await refresh()

        async def add() -> None:
            try:
                condition = read_filter(str(column.value or ""), str(how.value), str(value.value or ""))
            except StreamError as error:
                ui.notify(str(error), type="negative")
                return
            self.first = 0
            await change(filters=(*self.view.query.filters, condition))

        async def turn(event: Any) -> None:
            asked = event.args["pagination"]
            self.rows = min(100, asked["rowsPerPage"] or 100)
            self.first = (asked["page"] - 1) * self.rows
            await change(sort=asked["sortBy"] or "episode", descending=bool(asked["descending"]))

        def mark(event: Any) -> None:
            number, marked = event.args
            episode_id = self.table.values("episode_id", np.array([number]))[0]
            try:
                self.opened.marks.set(self.name, episode_id, bool(marked))
            except StreamError as error:
                ui.notify(str(error), type="negative")
            for row in grid.rows:
                if row["episode"] == number:
                    row["mark"] = self.opened.marks.has(self.name, episode_id)
            grid.update()

        async def seek(event: Any) -> None:
            self.first = 0
            await change(search=str(event.value or ""))

        search.on_value_change(seek)
        value.on("keydown.enter", add)
        grid.on("request", turn)
        grid.on("mark", mark)
        await refresh()

    def _columns(self) -> list[dict[str, Any]]:
        numbers = ("episode", *self.view.columns)
        found = bool(self.doctor.of(self.name, self.split))
        names = ["mark", "picture", *numbers, *(["findings"] if found else [])]
        titles = {"picture": "", "num_steps": "steps", "num_records": "records", "language": "instruction"}
        return [
            {
                "name": each,
                "label": titles.get(each, each),
                "field": each,
                "align": "left",
                "sortable": each in numbers,
            }
            for each in names
        ]

    def _rows(self, episodes: np.ndarray) -> list[dict[str, Any]]:
        columns = {name: self.table.values(name, episodes) for name in {*self.view.columns, "episode_id"}}
        rules: dict[int, set[str]] = {}
        for finding in self.doctor.of(self.name, self.split):
            for place in finding.places:
                if place.episode is not None:
                    rules.setdefault(place.episode, set()).add(finding.rule)
        return [
            {
                "episode": number,
                "address": episode_url(self.name, self.split, number),
                "picture": self.opened.frame_url(self.name, self.split, number, 0, 0),
                "mark": self.opened.marks.has(self.name, columns["episode_id"][place]),
                "findings": ", ".join(sorted(rules.get(number, ()))),
                **{name: columns[name][place] for name in self.view.columns},
            }
            for place, number in enumerate(episodes.tolist())
        ]

    async def _build_histograms(self) -> None:
        stored = [name for name in VECTORS if name in self.table.index.steps.columns]
        if not stored:
            ui.label("This dataset has no action and no state.")
            return
        others = [name for name in self.opened.names if name != self.name]
        with ui.row().classes("items-center"):
            vector = ui.select({name: VECTORS[name] for name in stored}, value=stored[0], label="Vector").classes(
                "w-56"
            )
            scale = ui.select(list(SCALES), value=SCALES[0], label="Values").classes("w-36")
            beside = (
                ui.select(others, value=others, multiple=True, label="Beside").props("options-dense").classes("w-64")
            )
        vector.mark("vector")
        scale.mark("scale")
        beside.props('display-value="' + f"{len(others)} datasets" + '"')
        told = ui.label().classes("faint")
        drawing = ui.html(sanitize=False).classes("w-full overflow-x-auto").mark("histograms")

        async def draw() -> None:
            try:
                found = await asyncio.to_thread(
                    compare, self.opened, (self.name, self.split), list(beside.value), vector.value, scale.value
                )
            except (StreamError, OSError) as error:
                told.text = str(error)
                return
            beside.props(f'display-value="{len(beside.value)} datasets"')
            told.text = (
                f"a sample of {found.sampled.get(self.name, 0):,} of {len(self.table.index.steps):,} steps; point at a "
                "histogram for its least and largest value"
            )
            drawing.content = draw_comparison(found)

        for each in (vector, scale, beside):
            each.on_value_change(draw)
        await draw()

    def _build_lengths(self) -> None:
        steps = self.table.index.episodes.array("num_steps")
        if not len(steps):
            ui.label("This split has no episodes.")
            return
        low, high = int(steps.min()), int(steps.max()) + 1
        counts, edges = np.histogram(steps, min(_BINS, high - low), (low, high))
        figures = f"{low:,} to {high - 1:,} steps, median {np.median(steps):,.0f}, {int(steps.sum()):,} in all"
        ui.label(figures).classes("faint")
        ui.html(draw_counts(counts, edges, unit="steps"), sanitize=False).mark("lengths")

    async def _build_instructions(self) -> None:
        texts = await asyncio.to_thread(self.table.frequent_texts, "language", _TEXTS)
        count = self.table.index.episodes.columns["language"].texts
        ui.label(f"{count.count if count else 0:,} different instructions, the most frequent first").classes("faint")
        rows = "".join(
            f'<tr><td class="number">{number:,}</td><td><a class="plain" href="{escape(self._said(text))}">'
            f"{escape(text) or '(none)'}</a></td></tr>"
            for text, number in texts
        )
        ui.html(f'<table class="plain" id="instructions">{rows}</table>', sanitize=False)

    def _said(self, text: str) -> str:
        """Return the address of the episodes with an instruction."""
        query = Query(filters=(("episodes.language", "==", text),))
        state = _View(query, self.view.columns).to_json()
        return f"{dataset_url(self.name, self.split)}?{urlencode({'state': state})}"
