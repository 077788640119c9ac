"""What ``convert.doctor`` found as one HTML file: no other files, no scripts, every text escaped."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from convert.doctor.dataset import DatasetReport
from convert.doctor.report import Diagnosis, frozen_share
from convert.doctor.rules import SEVERITIES, Example, Finding
from stream.storage.atomic import write_whole

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #191919; }
table { border-collapse: collapse; margin: 0.6em 0; } td, th { padding: 0.25em 0.7em; text-align: left;
vertical-align: top; border-bottom: 1px solid #ddd; } td.number, th.number { text-align: right; }
.error { color: #b00020; font-weight: 600; } .warning { color: #8a5a00; font-weight: 600; } .hint { color: #555; }
figure { display: inline-block; margin: 0.4em 0.8em 0.4em 0; max-width: 34em; vertical-align: top; }
figcaption, .example { color: #555; font-size: 13px; overflow-wrap: anywhere; } img { display: block; max-width: 100%; }
"""


def write_page(path: Path, diagnosis: Diagnosis) -> None:
    """Write the page, whole or not at all. Raises OSError if the folder cannot be written."""
    write_whole(path, format_page(diagnosis).encode(errors="backslashreplace"))


def format_page(diagnosis: Diagnosis) -> str:
    """Return the page as HTML."""
    header = ["dataset", "splits", "episodes", "pairs", "looked at", "frozen", *(f"{s}s" for s in SEVERITIES)]
    rows = [
        [
            f'<a href="#{escape(_anchor(dataset))}">{escape(dataset.dataset)}</a>',
            escape(", ".join(dataset.splits)),
            *(f"{number:,}" for number in (dataset.episodes, dataset.records, dataset.pairs)),
            frozen_share(dataset),
            *(str(dataset.count(severity)) for severity in SEVERITIES),
        ]
        for dataset in diagnosis.datasets
    ]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>convert.doctor</title>',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(diagnosis.root)}</h1><p>{escape(diagnosis.summary())}. --frames {diagnosis.frames}, "
        f"--seed {diagnosis.seed}.</p>",
        _table(header, rows, numbers=range(2, len(header))),
        *(_section(dataset) for dataset in diagnosis.datasets),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _section(dataset: DatasetReport) -> str:
    lines = [f'<h2 id="{escape(_anchor(dataset))}">{escape(dataset.dataset)} {escape(dataset.version)}</h2>']
    if dataset.findings:
        rows = [_row(finding) for finding in dataset.findings]
        lines.append(_table(["severity", "rule", "split", "count", "what was found"], rows, numbers=(3,)))
    else:
        lines.append("<p>Nothing was found.</p>")
    if dataset.samples:
        lines.append("<h3>Pairs without a finding</h3>")
        lines += [_figure(sample) for sample in dataset.samples]
    return "\n".join(lines)


def _anchor(dataset: DatasetReport) -> str:
    return f"{dataset.dataset}-{dataset.version}"


def _row(finding: Finding) -> list[str]:
    rule = finding.rule
    shown = "".join(
        _figure(example) if example.picture is not None else f'<p class="example">{_caption(example)}</p>'
        for example in finding.examples
    )
    return [
        f'<span class="{rule.severity}">{rule.severity}</span>',
        escape(rule.name),
        escape(finding.split or "all"),
        f"{finding.count:,} {escape(rule.unit)}",
        f"{escape(rule.meaning)}{shown}",
    ]


def _figure(example: Example) -> str:
    picture = base64.b64encode(example.picture or b"").decode()
    alt = _text(str(example.place))
    return (
        f'<figure><img src="data:image/jpeg;base64,{picture}" alt="{alt}">'
        f"<figcaption>{_caption(example)}</figcaption></figure>"
    )


def _caption(example: Example) -> str:
    said = f"<br>“{_text(example.instruction)}”" if example.instruction else ""
    return f"{_text(str(example.place))}: {_text(example.text)}{said}"


def _text(text: str) -> str:
    """Return a text of the data as HTML: escaped, control characters as Python writes them."""
    return escape("".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int]) -> str:
    """Return a table of cells that are HTML already."""

    def line(cells: Sequence[str], tag: str) -> str:
        made = (
            f"<{tag}{' class=number' if number in numbers else ''}>{cell}</{tag}>" for number, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    return "\n".join(["<table>", line(header, "th"), *(line(row, "td") for row in rows), "</table>"])
