"""A split of a dataset: its episodes as a table, and on further tabs histograms, lengths, instructions and findings."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from html import escape
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
from nicegui import ui

from pairstream.browse.browsed_root import BrowsedRoot, dataset_url, episode_url
from pairstream.browse.doctor import Doctor
from pairstream.browse.drawing import draw_comparison, draw_counts
from pairstream.browse.episodes import EpisodeTable, Query, read_filter
from pairstream.browse.facts import describe_facts, notes_of
from pairstream.browse.histograms import SCALES, VECTORS, compare
from pairstream.browse.markup import facts_html
from pairstream.browse.pages.doctor import show_findings
from pairstream.browse.shell import LatestWish, page_frame
from stream.base.errors import StreamError
from stream.sample.filters import OPERATORS

TABS = ("Episodes", "Histograms", "Lengths", "Instructions", "Findings")
_SHOWN = ("num_steps", "language", "status")
_TEXTS, _BINS, _PICTURES = 200, 40, 5
"""Most instructions that are listed, bars of the lengths, and pictures of an episode."""

_CELLS = {
    "pictures": """<a :href="props.row.address" class="strip" :aria-label="'play episode ' + props.row.episode"><img
        v-for="url in props.row.pictures" :src="url" :key="url" alt="" loading="lazy"
        onerror="this.style.visibility = 'hidden'"></a>""",
    "episode": """<a class="plain" :href="props.row.address">{{ props.value }}</a>""",
    "mark": """<q-checkbox dense :model-value="props.value" :aria-label="'mark ' + props.row.episode"
        @update:model-value="value => $parent.$emit('mark', [props.row.episode, value])" />""",
    "findings": """<span class="warning">{{ props.value }}</span>""",
    "language": """<div class="instruction">{{ props.value }}</div>""",
}
"""Content of the cells of some columns, as Vue templates."""


async def show(root: BrowsedRoot, doctor: Doctor, name: str, split: str, *, state: str = "{}", tab: str = "") -> None:
    """Build the page of a split; raise ArgumentError if it does not exist, FormatError if its index is damaged.

    ``state`` is the search, conditions, order and columns of the table, as JSON in the page's address.
    """
    dataset, table = root.dataset(name), root.table(name, split)
    page = _Page(root, doctor, table, name, split, _View.read(state, table))
    with page_frame(root, f"{name}, {split}"):
        facts = describe_facts(dataset)
        ui.label(facts["description"])
        if len(dataset.shards) > 1:
            switch = ui.toggle(list(dataset.shards), value=split).props("dense no-caps").mark("split")
            switch.on_value_change(lambda event: ui.navigate.to(dataset_url(name, event.value)))
        with ui.expansion("About this dataset", value=False).classes("w-full").props("dense"):
            ui.html(facts_html(notes_of(facts)), sanitize=False).classes("w-full")
            for quirk in facts["quirks"]:
                ui.label(f"• {quirk}")
        first_tab = tab if tab in TABS else TABS[0]
        with ui.tabs().props("align=left dense no-caps outside-arrows") as tabs:
            for tab_title in TABS:
                ui.tab(tab_title)
        tabs.value = first_tab
        content = ui.column().classes("w-full")

        async def open_tab(tab_name: str) -> None:
            content.clear()
            page.tab = tab_name
            page.remember()
            # A visitor may leave a tab before it is complete: the rest goes into a column that is no longer shown.
            with content, ui.column().classes("w-full"):
                await page.build()

        tabs.on_value_change(lambda event: open_tab(event.value))
        if first_tab == TABS[0] and not page.view.query.where:
            # The table is part of the page; tabs that may take longer are built after the page is shown.
            with content:
                await page.build()
        else:
            ui.timer(0, lambda: open_tab(first_tab), once=True)


class _View(NamedTuple):
    """State of the table: query, and columns that are shown."""

    query: Query
    columns: tuple[str, ...]

    @classmethod
    def read(cls, state: str, table: EpisodeTable) -> _View:
        """Return the state in an address, without columns that this split lacks."""
        default_columns = tuple(name for name in (*_SHOWN, table.success, "mean of motion") if name in table.columns)
        try:
            parsed_state = json.loads(state)
            conditions = parsed_state.get("where", [])
            query = Query(
                search=str(parsed_state.get("search", "")),
                where=tuple((str(column), str(operator), value) for column, operator, value in conditions),
                sort=parsed_state.get("sort") if parsed_state.get("sort") in table.columns else "episode",
                descending=bool(parsed_state.get("down")),
            )
            columns = parsed_state.get("columns", default_columns)
            return cls(query, tuple(name for name in columns if name in table.columns))
        except (ValueError, TypeError, AttributeError):
            return cls(Query(), default_columns)

    def to_json(self) -> str:
        query = self.query
        content = {"search": query.search, "where": query.where, "sort": query.sort, "down": query.descending}
        return json.dumps({**content, "columns": self.columns}, separators=(",", ":"))


@dataclass(eq=False)
class _Page:
    """A page that is shown to one visitor; ``first`` is the number of the first row that the table shows."""

    root: BrowsedRoot
    doctor: Doctor
    table: EpisodeTable
    name: str
    split: str
    view: _View
    tab: str = TABS[0]
    first: int = 0
    rows: int = 20

    def remember(self) -> None:
        """Write the state of the page into its address."""
        state = {"tab": self.tab, "state": self.view.to_json()}
        ui.navigate.history.replace(f"{dataset_url(self.name, self.split)}?{urlencode(state)}")

    async def build(self) -> None:
        """Build the content of the open tab."""
        try:
            match self.tab:
                case "Episodes":
                    await self._build_episodes()
                case "Histograms":
                    await self._build_histograms()
                case "Lengths":
                    self._build_lengths()
                case "Instructions":
                    await self._build_instructions()
                case _:
                    show_findings(self.root, self.doctor, [self.name], split_name=self.split)
        except (StreamError, OSError) as error:
            ui.label(str(error)).classes("error")

    async def _build_episodes(self) -> None:
        with ui.row().classes("items-center w-full"):
            search_input = ui.input("Instruction, id or number", value=self.view.query.search)
            search_input.props("dense clearable debounce=300").classes("w-64").mark("search")
            column_select = ui.select(self.table.filter_columns, with_input=True, label="Filter").props("dense")
            column_select.classes("w-56").mark("filter-column")
            operator_select = ui.select(list(OPERATORS), value="==").props("dense").classes("w-28").mark("filter-how")
            value_input = ui.input("Value").props("dense").classes("w-36").mark("filter-value")
            add_button = ui.button("Add").props("dense flat no-caps").mark("filter-add")
            column_choice = ui.select(self.table.columns, value=list(self.view.columns), multiple=True, label="Columns")
            column_choice.props("dense options-dense").classes("w-56").mark("columns")
        filter_chips = ui.row().classes("items-center gap-1")
        status_label = ui.label().classes("faint").mark("found")
        episode_grid = ui.table(columns=[], rows=[], row_key="episode", pagination={"rowsPerPage": self.rows})
        episode_grid.props('flat dense hide-no-data binary-state-sort :rows-per-page-options="[20, 50, 100]"')
        episode_grid.classes("w-full").mark("episodes")
        for column_name, template in _CELLS.items():
            episode_grid.add_slot(f"body-cell-{column_name}", f'<q-td :props="props">{template}</q-td>')

        begin_wish = LatestWish()

        async def refresh() -> None:
            is_last, query = begin_wish(), self.view.query
            try:
                matches, num_samples = await asyncio.to_thread(self.table.find, query)
            except (StreamError, OSError) as error:
                if is_last():
                    status_label.text = str(error)
                    status_label.classes("error")
                return
            first = min(self.first, max(0, (len(matches) - 1) // self.rows * self.rows))
            shown_episodes = matches[first : first + self.rows]
            rows = await asyncio.to_thread(self._rows, shown_episodes)
            if not is_last():
                return
            status_label.classes(remove="error")
            self.first = first
            status_label.text = f"{len(matches):,} of {len(self.table):,} episodes"
            if not len(matches):
                status_label.text += "; none matches: change the search or remove a filter"
            if num_samples is not None:
                num_all = len(self.table.index.table(self.table.samples))
                status_label.text += f", {num_samples:,} of {num_all:,} samples"
            episode_grid.columns = self._columns()
            episode_grid.rows = rows
            episode_grid.pagination = {
                "page": self.first // self.rows + 1,
                "rowsPerPage": self.rows,
                "rowsNumber": len(matches),
                "sortBy": query.sort,
                "descending": query.descending,
            }
            filter_chips.clear()
            with filter_chips:
                for condition in query.where:
                    column_name, operator, value = condition
                    chip_text = f"{column_name} {operator} {json.dumps(value, ensure_ascii=False)}"
                    chip = ui.chip(chip_text, removable=True).props("dense text-color=white")
                    remaining = tuple(other for other in query.where if other != condition)
                    chip.on("remove", lambda _, remaining=remaining: change(where=remaining))

        async def change(columns: tuple[str, ...] | None = None, **query: Any) -> None:
            shown_columns = self.view.columns if columns is None else columns
            self.view = _View(replace(self.view.query, **query), shown_columns)
            self.remember()
            await refresh()

        async def add() -> None:
            try:
                column_name, operator = str(column_select.value or ""), str(operator_select.value)
                condition = read_filter(column_name, operator, str(value_input.value or ""))
            except StreamError as error:
                ui.notify(str(error), type="negative")
                return
            self.first = 0
            await change(where=(*self.view.query.where, condition))

        async def turn(event: Any) -> None:
            pagination = event.args["pagination"]
            self.rows = min(100, pagination["rowsPerPage"] or 100)
            self.first = (pagination["page"] - 1) * self.rows
            await change(sort=pagination["sortBy"] or "episode", descending=bool(pagination["descending"]))

        def mark(event: Any) -> None:
            episode_number, marked = event.args
            episode_id = self.table.values("episode_id", np.array([episode_number]))[0]
            try:
                self.root.marks.set(self.name, episode_id, bool(marked))
            except StreamError as error:
                ui.notify(str(error), type="negative")
            for grid_row in episode_grid.rows:
                if grid_row["episode"] == episode_number:
                    grid_row["mark"] = self.root.marks.has(self.name, episode_id)
            episode_grid.update()

        async def seek(event: Any) -> None:
            self.first = 0
            await change(search=str(event.value or ""))

        search_input.on_value_change(seek)
        column_choice.on_value_change(lambda event: change(columns=tuple(event.value)))
        add_button.on_click(add)
        value_input.on("keydown.enter", add)
        episode_grid.on("request", turn)
        episode_grid.on("mark", mark)
        await refresh()

    def _columns(self) -> list[dict[str, Any]]:
        sortable = ("episode", *self.view.columns)
        has_findings = bool(self.doctor.findings_of(self.name, self.split))
        column_names = ["mark", "pictures", *sortable, *(["findings"] if has_findings else [])]
        titles = {"pictures": "frames", "num_steps": "steps", "num_records": "records", "language": "instruction"}
        columns = []
        for name in column_names:
            texts = {"name": name, "field": name, "label": titles.get(name, name), "align": "left"}
            columns.append({**texts, "sortable": name in sortable})
        return columns

    def _rows(self, episodes: np.ndarray) -> list[dict[str, Any]]:
        values = {name: self.table.values(name, episodes) for name in {*self.view.columns, "episode_id"}}
        step_counts = self.table.index.episodes.array("num_steps")[episodes].tolist()
        rules_by_episode: dict[int | None, set[str]] = {}
        for finding in self.doctor.findings_of(self.name, self.split):
            for example in finding["examples"]:
                rules_by_episode.setdefault(example["episode"], set()).add(finding["rule"])
        return [
            {
                "episode": episode_number,
                "address": episode_url(self.name, self.split, episode_number),
                "pictures": [
                    self.root.frame_url(self.name, self.split, episode_number, 0, step)
                    for step in sorted(set(np.linspace(0, num_steps - 1, _PICTURES).astype(int).tolist()))
                ],
                "mark": self.root.marks.has(self.name, values["episode_id"][position]),
                "findings": ", ".join(sorted(rules_by_episode.get(episode_number, ()))),
                **{name: values[name][position] for name in self.view.columns},
            }
            for position, (episode_number, num_steps) in enumerate(zip(episodes.tolist(), step_counts, strict=True))
        ]

    async def _build_histograms(self) -> None:
        titles = {name: title for name, title in VECTORS.items() if name in self.table.index.steps.columns}
        if not titles:
            ui.label("This dataset has no action and no state, so no histograms; see Lengths and Instructions.")
            return
        others = [name for name in self.root.names if name != self.name]
        with ui.row().classes("items-center"):
            vector_select = ui.select(titles, value=next(iter(titles)), label="Vector").classes("w-56").mark("vector")
            scale_select = ui.select(list(SCALES), value=SCALES[0], label="Values").classes("w-36").mark("scale")
            dataset_select = ui.select(others, value=others, multiple=True, label="Beside").classes("w-64")
        dataset_select.props(f'options-dense display-value="{len(others)} datasets"')
        status_label = ui.label().classes("faint")
        drawing = ui.html(sanitize=False).classes("scroll").props("tabindex=0").mark("histograms")

        begin_wish = LatestWish()

        async def draw() -> None:
            is_last = begin_wish()
            try:
                shown_split, datasets = (self.name, self.split), list(dataset_select.value)
                choice = (datasets, vector_select.value, scale_select.value)
                comparison = await asyncio.to_thread(compare, self.root, shown_split, *choice)
            except (StreamError, OSError) as error:
                if is_last():
                    status_label.text = str(error)
                return
            if not is_last():
                return
            dataset_select.props(f'display-value="{len(datasets)} datasets"')
            num_sampled, num_steps = comparison.sampled.get(self.name, 0), len(self.table.index.steps)
            hint = "percentages are the share of the tallest bar; point at a histogram for its least and largest value"
            status_label.text = f"a sample of {num_sampled:,} of {num_steps:,} steps; {hint}"
            drawing.content = draw_comparison(comparison)

        for selection in (vector_select, scale_select, dataset_select):
            selection.on_value_change(draw)
        await draw()

    def _build_lengths(self) -> None:
        step_counts = self.table.index.episodes.array("num_steps")
        if not len(step_counts):
            ui.label("This split has no episodes; choose another split.")
            return
        fewest, upper_end = int(step_counts.min()), int(step_counts.max()) + 1
        counts, edges = np.histogram(step_counts, min(_BINS, upper_end - fewest), (fewest, upper_end))
        median, total = np.median(step_counts), int(step_counts.sum())
        span = f"{fewest:,} to {upper_end - 1:,}" if upper_end - 1 > fewest else f"{fewest:,}"
        ui.label(f"{span} steps, median {median:,.0f}, {total:,} in all").classes("faint")
        drawing = draw_counts(counts, edges, unit="steps", counted="episodes")
        ui.html(drawing, sanitize=False).classes("scroll").props("tabindex=0").mark("lengths")

    async def _build_instructions(self) -> None:
        instructions, num_texts = await asyncio.to_thread(self.table.frequent_instructions, _TEXTS)
        ui.label(f"{num_texts:,} different instructions, the most frequent first").classes("faint")
        table_rows = "".join(
            f'<tr><td class="number">{count:,}</td><td><a class="plain" href="{escape(self._address(instruction))}">'
            f"{escape(instruction) or '(none)'}</a></td></tr>"
            for instruction, count in instructions
        )
        ui.html(f'<table class="plain" id="instructions">{table_rows}</table>', sanitize=False)

    def _address(self, instruction: str) -> str:
        """Return the address of the episodes with an instruction."""
        query = Query(where=(("episodes.language", "==", instruction),))
        state_json = _View(query, self.view.columns).to_json()
        return f"{dataset_url(self.name, self.split)}?{urlencode({'state': state_json})}"
