"""Result of ``convert.doctor`` as one HTML file without other files or scripts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from convert.doctor.dataset import Examined
from convert.findings import Example, Finding, Report
from stream.storage.files import write_whole

_COLUMNS = ("severity", "rule", "split", "count", "what was found")
_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>convert.doctor</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #191919; }}
table {{ border-collapse: collapse; margin: 0.6em 0; }}
td, th {{ padding: 0.25em 0.7em; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }}
.error {{ color: #b00020; font-weight: 600; }} .warning {{ color: #8a5a00; font-weight: 600; }} .hint {{ color: #555; }}
figure {{ display: inline-block; margin: 0.4em 0.8em 0.4em 0; max-width: 34em; vertical-align: top; }}
figcaption, .example {{ color: #555; font-size: 13px; overflow-wrap: anywhere; }}
img {{ display: block; max-width: 100%; }}
</style></head><body>
<h1>{root}</h1><p>{summary}. {settings}.</p>
{datasets}
{sections}
</body></html>
"""


def write_page(path: Path, report: Report) -> None:
    """Write the page atomically, with every text escaped; raises OSError if the folder is not writable."""
    overview, sections, (heads, rows) = [], [], report.table()
    for number, (dataset, row) in enumerate(zip(report.datasets, rows, strict=True)):
        name, *cells = (_text(f"{cell:,}" if isinstance(cell, int) else cell) for cell in row)
        overview.append([f'<a href="#{number}">{name}</a>', *cells])
        sections.append(f'<h2 id="{number}">{name} {_text(dataset.version)}</h2>')
        found = [_cells(finding) for finding in dataset.findings]
        sections.append(_table(_COLUMNS, found) if found else "<p>Nothing was found.</p>")
        if isinstance(dataset, Examined) and dataset.total.samples:
            sections += ["<h3>Pairs without a finding</h3>", *map(_figure, dataset.total.samples)]
    page = _PAGE.format(
        root=_text(report.root),
        summary=_text(report.summary()),
        settings=", ".join(f"--{name} {value}" for name, value in report.settings.items()),
        datasets=_table(heads, overview),
        sections="\n".join(sections),
    )
    write_whole(path, page.encode(errors="backslashreplace"))


def _cells(finding: Finding) -> list[str]:
    rule = finding.rule
    severity = f'<span class="{rule.severity}">{rule.severity}</span>'
    found = _text(rule.meaning) + "".join(map(_figure, finding.examples))
    return [severity, rule.name, _text(finding.split or "all"), f"{finding.count:,} {rule.unit}", found]


def _figure(example: Example) -> str:
    """Return an example with its picture, if it has one."""
    place = _text(example.place)
    said = f"<br>“{_text(example.instruction)}”" if example.instruction else ""
    caption = f"{place}: {_text(example.text)}{said}"
    if example.picture is None:
        return f'<p class="example">{caption}</p>'
    source = f"data:image/jpeg;base64,{base64.b64encode(example.picture).decode()}"
    return f'<figure><img src="{source}" alt="{place}"><figcaption>{caption}</figcaption></figure>'


def _text(text: str) -> str:
    """Return a text as HTML, with control characters as Python escapes."""
    return escape("".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already."""
    lines = [f"<tr>{''.join(f'<th>{cell}</th>' for cell in header)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    return "\n".join(["<table>", *lines, "</table>"])
