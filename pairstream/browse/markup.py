"""Tables of the pages as HTML, every text escaped; ``pairstream.browse.static`` writes the same without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from pairstream.browse.browsed_root import dataset_url
from pairstream.browse.doctor import Finding, FindingExample
from pairstream.browse.facts import Facts, human_hours
from stream.base.progress import human_bytes

STYLE = """
body { background: #fafafb; color: #1b1e24; }
.q-page { min-height: 0 !important; }
.nicegui-content { padding: 1rem 1.5rem; }
a.plain { color: #1553a5; text-decoration: none; } a.plain:hover { text-decoration: underline; }
.faint { color: #667; font-size: 0.85rem; } .error { color: #b00020; } .warning { color: #8a5a00; }
table.plain { border-collapse: collapse; font-size: 14px; }
table.plain td, table.plain th { padding: 0.3em 0.6em; text-align: left; vertical-align: top;
  border-bottom: 1px solid #ddd; }
table.plain img.first { height: 64px; width: 64px; max-width: none; }
table.plain summary { cursor: pointer; display: list-item; } table.plain ul { list-style: disc; padding-left: 1.2em; }
table.plain td.number { white-space: nowrap; }
table.plain td.number, table.plain th.number { text-align: right; font-variant-numeric: tabular-nums; }
p.example { margin: 0.3em 0; overflow-wrap: anywhere; } p.example img { height: 72px; margin-right: 0.6em;
  display: inline-block; vertical-align: middle; }
h1 { font-size: 1.4rem; font-weight: 600; line-height: 1.6; margin: 0; }
h2 { font-size: 1.1rem; font-weight: 600; line-height: 1.6; margin: 0.8rem 0 0.2rem; }
"""
"""Look of the tables, in pages and files."""

_NUMBERS = ("episodes", "hours", "samples", "size", "rate")
_HEADINGS = ("", "dataset", *_NUMBERS, "robot", "cameras", "codec", "licence", "left out")


def totals(facts: Sequence[Facts]) -> str:
    """Return the sums over all datasets in words."""
    episodes, samples, num_bytes = (sum(dataset[key] for dataset in facts) for key in ("episodes", "samples", "bytes"))
    hours = human_hours(sum(dataset["hours"] or 0 for dataset in facts))
    datasets = f"{len(facts)} dataset{'s' if len(facts) != 1 else ''}"
    return f"{datasets}, {episodes:,} episodes, {hours} hours, {samples:,} samples, {human_bytes(num_bytes)}"


def overview_html(
    facts: Sequence[Facts], damaged: Mapping[str, str], *, picture: Callable[[Facts], str], links: bool = True
) -> str:
    """Return the table of datasets, with their pictures, every text escaped; ``links`` lead to the pages of splits."""
    heading = "".join(f"<th{_side(column)}>{column}</th>" for column in _HEADINGS)
    rows = [_row(dataset, escape(picture(dataset)), links=links) for dataset in facts]
    for name, fault in damaged.items():
        fault_cell = f'<td colspan="{len(_HEADINGS) - 2}" class="error">{escape(fault)}</td>'
        rows.append(f"<tr><td></td><td>{escape(name)}</td>{fault_cell}</tr>")
    return f'<table class="plain" id="datasets"><tr>{heading}</tr>{"".join(rows)}</table>'


def _row(facts: Facts, picture: str, *, links: bool) -> str:
    def link(html: str, split: str) -> str:
        return f'<a class="plain" href="{dataset_url(facts["dataset"], split)}">{html}</a>' if links else html

    split_links = [f"{link(escape(split), split)} {count:,}" for split, count in facts["splits"].items()]
    name = link(f"<b>{escape(facts['dataset'])}</b>", facts["first_split"])
    quirks = "".join(f"<li>{escape(quirk)}</li>" for quirk in facts["quirks"])
    quirks = f"<details class='faint'><summary>quirks: {len(facts['quirks'])}</summary><ul>{quirks}</ul></details>"
    version = f'<span class="faint">{escape(facts["version"])}, {facts["layout"]}</span>'
    description = f'<div class="faint">{escape(facts["description"])}</div>{quirks if facts["quirks"] else ""}'
    licence = facts["license"] or "unknown"
    left_out = ", ".join(f"{count:,} {escape(reason)}" for reason, count in facts["left_out"].items())
    hide_broken = "onerror=\"this.style.visibility = 'hidden'\""
    cells = {
        "": f'<img src="{picture}" loading="lazy" alt="" class="first" {hide_broken}>',
        "dataset": f"{name} {version}<br>{', '.join(split_links)}{description}",
        "episodes": f"{facts['episodes']:,}",
        "hours": "?" if facts["hours"] is None else human_hours(facts["hours"]),
        "samples": f"{facts['samples']:,}",
        "size": human_bytes(facts["bytes"]),
        "rate": f"{facts['rate']:g} Hz" if facts["rate"] else "?",
        "robot": escape(facts["robot"] or "named by each episode"),
        "cameras": escape(", ".join(facts["cameras"])),
        "codec": escape(facts["codec"]),
        "licence": f'<span title="{escape(licence)}">{escape(licence.partition(" [")[0].partition(":")[0])}</span>',
        "left out": left_out or '<span class="faint">nothing</span>',
    }
    return "<tr>" + "".join(f"<td{_side(column)}>{cell}</td>" for column, cell in cells.items()) + "</tr>"


def _side(column_name: str) -> str:
    return ' class="number"' if column_name in _NUMBERS else ""


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
