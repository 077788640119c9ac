"""Tables of the pages as HTML, every text escaped; ``pairstream.browse.static`` writes the same without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pairstream.browse.browsed_root import dataset_url
from pairstream.browse.doctor import Finding, FindingExample
from pairstream.browse.facts import Facts
from pairstream.info.overview import human_duration
from stream.base.progress import human_bytes

STYLE = Path(__file__).with_name("style.css").read_text("utf-8")
"""Look of all pages, live and in files, in light and dark."""
OVERVIEW_SCRIPT = f"<script>{Path(__file__).with_name('overview.js').read_text('utf-8')}</script>"
"""Search, filters and order of ``overview_html``, which come after it in a page."""

THEME_SCRIPT = f"<script>{Path(__file__).with_name('theme.js').read_text('utf-8')}</script>"
"""Choice of the colours of all pages, for the head of a page."""
_THEME_OPTIONS = "".join(f"<option value='{name}'>{name}</option>" for name in ("system", "light", "dark"))
THEME_SWITCH = f"<select id='colours' aria-label='colours' title='colours of the pages'>{_THEME_OPTIONS}</select>"
"""Field for the header of a page that ``THEME_SCRIPT`` follows."""

_NUMBERS = ("episodes", "length", "samples", "size", "rate")
_WIDE_ONLY = ("splits", "samples", "size", "robot", "cameras", "codec", "licence", "left out")
"""Columns that a phone does not show."""
_FILTERS = ("robot", "rate", "cameras", "licence")


def totals(facts: Sequence[Facts]) -> str:
    """Return the sums over all datasets in words."""
    episodes, samples, num_bytes = (sum(dataset[key] for dataset in facts) for key in ("episodes", "samples", "bytes"))
    length = human_duration(sum(dataset["hours"] or 0 for dataset in facts))
    datasets = f"{len(facts)} dataset{'s' if len(facts) != 1 else ''}"
    return f"{datasets}, {episodes:,} episodes, {length}, {samples:,} samples, {human_bytes(num_bytes)}"


def overview_html(
    facts: Sequence[Facts], damaged: Mapping[str, str], *, picture: Callable[[Facts], str], links: bool = True
) -> str:
    """Return the table of datasets with a search and filters, every text escaped.

    ``links`` lead to the pages of splits. The columns of codecs and of what the conversion left out are shown only if a
    dataset has something to say there.
    """
    rows = [_cells(dataset, escape(picture(dataset)), links=links) for dataset in facts]
    usual = {"codec": "jpeg", "left out": ""}
    columns = [name for name in rows[0] if any(row[name][0] != usual.get(name) for row in rows)] if rows else ["", ""]
    # The pictures have no heading, and a heading without text would be read aloud as an empty one.
    headings = "".join(f"<th{_side(name)}><button>{name}</button></th>" if name else "<td></td>" for name in columns)
    filter_values = [_filter_values(dataset) for dataset in facts]
    html_rows = []
    for dataset, row, values in zip(facts, rows, filter_values, strict=True):
        data = "".join(f' data-{name}="{escape(value)}"' for name, value in values.items())
        text = " ".join((dataset["dataset"], dataset["description"], *values.values(), *dataset["cameras"]))
        cells = "".join(
            f'<td{_side(name)} data-sort="{escape(str(row[name][1]))}">{row[name][0]}</td>' for name in columns
        )
        html_rows.append(f'<tr data-text="{escape(text)}"{data}>{cells}</tr>')
    for name, fault in damaged.items():
        fault_cell = f'<td colspan="{len(columns) - 2}" class="error">{escape(fault)}</td>'
        html_rows.append(f'<tr data-text="{escape(name)}"><td></td><td>{escape(name)}</td>{fault_cell}</tr>')
    table = f"<thead><tr>{headings}</tr></thead><tbody>{''.join(html_rows)}</tbody>"
    return f'{_filters(filter_values)}<table class="plain" id="datasets">{table}</table>'


def _filter_values(facts: Facts) -> dict[str, str]:
    return {
        "robot": facts["robot"],
        "rate": f"{facts['rate']:g} Hz" if facts["rate"] else "",
        "cameras": str(len(facts["cameras"])),
        "licence": _licence(facts),
    }


def _licence(facts: Facts) -> str:
    # "CC BY 4.0" and "cc-by-4.0" are one licence; the registry quotes each source.
    return facts["license"].partition(" [")[0].partition(":")[0].upper().replace("-", " ").strip()


def _filters(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the search, and a selection for each filter that has more than one value."""
    fields = ['<input type="search" name="search" data-filter placeholder="Search" aria-label="Search">']
    for name in _FILTERS:
        values = sorted({row[name] for row in rows} - {""}, key=_natural)
        if len(values) > 1:
            options = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
            options = f'<option value="">any {name}</option>{options}'
            fields.append(f'<select name="{name}" data-filter aria-label="{name}">{options}</select>')
    fields.append('<button id="clear" hidden>Clear</button><span id="shown" class="faint"></span>')
    return f'<div class="filters">{"".join(fields)}</div>'


def _natural(text: str) -> tuple[float, str]:
    """Return a key that sorts texts by their number, if they begin with one, and then by their letters."""
    number = text.split(" ")[0]
    return float(number) if number.isdecimal() else 0.0, text.casefold()


def _cells(facts: Facts, picture: str, *, links: bool) -> dict[str, tuple[str, Any]]:
    """Return the HTML of each column, and the value that the column is sorted by."""

    def link(html: str, split: str) -> str:
        return f'<a class="plain" href="{dataset_url(facts["dataset"], split)}">{html}</a>' if links else html

    name, rate, hours, licence = facts["dataset"], facts["rate"], facts["hours"], _licence(facts)
    split_links = [f"{link(escape(split), split)} {count:,}" for split, count in facts["splits"].items()]
    about = escape("\n".join((facts["description"], *facts["quirks"])))
    description = f'<div class="faint cut" title="{about}">{escape(facts["description"])}</div>'
    num_cameras, cameras = len(facts["cameras"]), escape(", ".join(facts["cameras"]))
    left_out = ", ".join(f"{count:,} {escape(reason)}" for reason, count in facts["left_out"].items())
    hide_broken = "onerror=\"this.style.visibility = 'hidden'\""
    return {
        "": (f'<img src="{picture}" loading="lazy" alt="" class="first" {hide_broken}>', ""),
        "dataset": (f"{link(f'<b>{name_html(name)}</b>', facts['first_split'])}{description}", name),
        "splits": (", ".join(split_links), ",".join(facts["splits"])),
        "episodes": (f"{facts['episodes']:,}", facts["episodes"]),
        "length": ("?", "") if hours is None else (human_duration(hours), hours),
        "samples": (f"{facts['samples']:,}", facts["samples"]),
        "size": (human_bytes(facts["bytes"]), facts["bytes"]),
        "rate": (f"{rate:g} Hz", rate) if rate else ("?", ""),
        "robot": (escape(facts["robot"] or "by episode"), facts["robot"]),
        "cameras": (f'{num_cameras} <span class="faint" title="{cameras}">{cameras}</span>', num_cameras),
        "codec": (escape(facts["codec"]), facts["codec"]),
        "licence": (f'<span title="{escape(facts["license"])}">{escape(licence or "unknown")}</span>', licence),
        "left out": (left_out, sum(facts["left_out"].values())),
    }


def name_html(name: str) -> str:
    """Return a name, escaped, that breaks after its words where it is too long."""
    return escape(name).replace("_", "_<wbr>")


def _side(column_name: str) -> str:
    classes = ["number"] * (column_name in _NUMBERS) + ["wide"] * (column_name in _WIDE_ONLY)
    return f' class="{" ".join([*classes, "cut"] if column_name == "cameras" else classes)}"' if classes else ""


def facts_html(rows: Mapping[str, Any]) -> str:
    """Return facts as a table of names and values in as many columns as fit, without facts that have no value."""
    entries = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in rows.items()
        if value not in (None, "", [])
    )
    return f'<dl class="facts">{entries}</dl>'


def findings_html(
    findings: Sequence[Finding],
    *,
    picture: Callable[[Finding, FindingExample], str],
    address: Callable[[Finding, FindingExample], str],
) -> str:
    """Return findings as a table, with the address of each example's frame and episode, or ""."""
    if not findings:
        return "<p>Nothing was found.</p>"
    headings = ("severity", "dataset", "split", "rule", "count", "found")
    table_rows = ["".join(f"<th>{column}</th>" for column in headings)]
    for finding in findings:
        examples_html = ""
        for example in finding["examples"]:
            is_shown = example["episode"] is not None
            urls = (picture(finding, example), address(finding, example)) if is_shown else ("", "")
            examples_html += _example(example, *urls)
        count = f"{finding['count']:,} {finding['unit']}"
        cells = map(escape, (finding["dataset"], finding["split"] or "all", finding["rule"], count))
        severity = f'<span class="{finding["severity"]}">{finding["severity"]}</span>'
        found_html = f"{escape(finding['meaning'])}<div>{examples_html}</div>"
        table_rows.append("".join(f"<td>{cell}</td>" for cell in (severity, *cells, found_html)))
    return f'<table class="plain" id="findings">{"".join(f"<tr>{row}</tr>" for row in table_rows)}</table>'


def _example(example: FindingExample, picture: str, address: str) -> str:
    instruction = f" “{escape(example['instruction'])}”" if example["instruction"] else ""
    picture_html = f'<img src="{escape(picture)}" loading="lazy" alt="" onerror="this.remove()">' if picture else ""
    label_html = "" if example["episode"] is None else f"{picture_html}episode {example['episode']}"
    link_html = f'<a class="plain" href="{escape(address)}">{label_html}</a>' if address else label_html
    return f'<p class="example">{link_html} <span class="faint">{escape(example["text"])}{instruction}</span></p>'
