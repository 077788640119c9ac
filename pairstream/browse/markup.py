"""Tables of the pages as HTML, every text escaped; ``pairstream.browse.static`` writes the same without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from pairstream.browse.doctor import Finding, Place
from pairstream.browse.facts import DatasetFacts, human_bytes, human_hours
from pairstream.browse.opened import dataset_url

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


_HEADS = (
    "",
    "dataset",
    "episodes",
    "hours",
    "samples",
    "size",
    "rate",
    "robot",
    "cameras",
    "codec",
    "licence",
    "left out",
)
_NUMBERS = ("episodes", "hours", "samples", "size", "rate")


def totals(facts: Sequence[DatasetFacts]) -> str:
    """Return the sums over all datasets in words."""
    episodes, samples, size = (sum(getattr(each, key) for each in facts) for key in ("episodes", "samples", "bytes"))
    hours = sum(each.hours or 0 for each in facts)
    counts = f"{len(facts)} dataset{'s' if len(facts) != 1 else ''}, {episodes:,} episodes, {human_hours(hours)} hours"
    return f"{counts}, {samples:,} samples, {human_bytes(size)}"


def overview_html(
    facts: Sequence[DatasetFacts],
    damaged: Mapping[str, str],
    *,
    picture: Callable[[DatasetFacts], str],
    links: bool = True,
) -> str:
    """Return the table of datasets, every text escaped.

    Args:
        facts: Facts of each dataset.
        damaged: Datasets that cannot be used, and why.
        picture: Function that returns the address of a dataset's picture.
        links: Whether names lead to the pages of the splits.
    """
    head = "".join(f"<th{_side(name)}>{name}</th>" for name in _HEADS)
    rows = "".join(_row(each, escape(picture(each)), links=links) for each in facts)
    broken = "".join(
        f'<tr><td></td><td>{escape(name)}</td><td colspan="{len(_HEADS) - 2}" class="error">{escape(text)}</td></tr>'
        for name, text in damaged.items()
    )
    return f'<table class="plain" id="datasets"><tr>{head}</tr>{rows}{broken}</table>'


def _row(facts: DatasetFacts, picture: str, *, links: bool) -> str:
    splits = [
        f'<a class="plain" href="{dataset_url(facts.name, split)}">{escape(split)}</a> {count:,}'
        if links
        else f"{escape(split)} {count:,}"
        for split, count in facts.splits.items()
    ]
    main = dataset_url(facts.name, facts.first_split)
    name = (
        f'<a class="plain" href="{main}"><b>{escape(facts.name)}</b></a>' if links else f"<b>{escape(facts.name)}</b>"
    )
    quirks = "".join(f"<li>{escape(quirk)}</li>" for quirk in facts.quirks)
    quirks = f"<details class='faint'><summary>quirks: {len(facts.quirks)}</summary><ul>{quirks}</ul></details>"
    told = f'{name} <span class="faint">{escape(facts.version)}, {facts.layout}</span><br>{", ".join(splits)}'
    licence = facts.licence or "not told"
    left = ", ".join(f"{count:,} {escape(reason)}" for reason, count in facts.left_out.items())
    hide = "onerror=\"this.style.visibility = 'hidden'\""
    cells = {
        "": f'<img src="{picture}" loading="lazy" alt="" class="first" {hide}>',
        "dataset": f'{told}<div class="faint">{escape(facts.description)}</div>{quirks if facts.quirks else ""}',
        "episodes": f"{facts.episodes:,}",
        "hours": "?" if facts.hours is None else human_hours(facts.hours),
        "samples": f"{facts.samples:,}",
        "size": human_bytes(facts.bytes),
        "rate": f"{facts.rate:g} Hz" if facts.rate else "?",
        "robot": escape(facts.robot or "named by each episode"),
        "cameras": escape(", ".join(facts.cameras)),
        "codec": escape(facts.codec),
        "licence": f'<span title="{escape(licence)}">{escape(licence.partition(" [")[0].partition(":")[0])}</span>',
        "left out": left or '<span class="faint">nothing</span>',
    }
    return "<tr>" + "".join(f"<td{_side(key)}>{cell}</td>" for key, cell in cells.items()) + "</tr>"


def _side(column: str) -> str:
    return ' class="number"' if column in _NUMBERS else ""


def findings_html(
    findings: Sequence[Finding],
    *,
    picture: Callable[[Finding, Place], str],
    address: Callable[[Finding, Place], str],
) -> str:
    """Return findings as a table, with the frame of each example's step.

    Args:
        findings: Findings.
        picture: Function that returns the address of the frame of an example with an episode; empty for none.
        address: Function that returns the address of its episode; empty for none.
    """
    if not findings:
        return "<p>Nothing was found.</p>"
    rows = []
    for finding in findings:
        examples = ""
        for place in finding.places:
            seen = place.episode is not None
            examples += _example(
                place, picture(finding, place) if seen else "", address(finding, place) if seen else ""
            )
        cells = [
            f'<span class="{finding.severity}">{finding.severity}</span>',
            escape(finding.dataset),
            escape(finding.split or "all"),
            escape(finding.rule),
            escape(finding.count),
            f"{escape(finding.meaning)}<div>{examples}</div>",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("severity", "dataset", "split", "rule", "count", "found"))
    return f'<table class="plain" id="findings"><tr>{head}</tr>{"".join(rows)}</table>'


def _example(place: Place, picture: str, address: str) -> str:
    said = f" “{escape(place.instruction)}”" if place.instruction else ""
    image = f'<img src="{escape(picture)}" loading="lazy" alt="" onerror="this.remove()">' if picture else ""
    name = "" if place.episode is None else f"{image}episode {place.episode}"
    link = f'<a class="plain" href="{escape(address)}">{name}</a>' if address else name
    return f'<p class="example">{link} <span class="faint">{escape(place.text)}{said}</span></p>'
