"""Result of ``convert.doctor`` as one HTML file, without other files or scripts, with every text escaped."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from convert.doctor.dataset import DatasetReport
from convert.doctor.findings import Example, Finding
from convert.doctor.report import HEADER, Diagnosis, table_row
from convert.doctor.rules import MAX_EXAMPLES
from stream.storage.files import write_whole

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
<h1>{root}</h1><p>{summary}. --frames {frames}, --seed {seed}.</p>
{datasets}
{sections}
</body></html>
"""


def write_page(path: Path, diagnosis: Diagnosis) -> None:
    """Write the page atomically; raises OSError if the folder is not writable."""
    rows = []
    for dataset in diagnosis.datasets:
        name, *cells = (f"{cell:,}" if isinstance(cell, int) else escape(cell) for cell in table_row(dataset))
        rows.append([f'<a href="#{_anchor(dataset)}">{name}</a>', *cells])
    page = _PAGE.format(
        root=escape(diagnosis.root),
        summary=escape(diagnosis.summary()),
        frames=diagnosis.frames,
        seed=diagnosis.seed,
        datasets=_table(HEADER, rows),
        sections="\n".join(map(_section, diagnosis.datasets)),
    )
    write_whole(path, page.encode(errors="backslashreplace"))


def _section(dataset: DatasetReport) -> str:
    lines = [f'<h2 id="{_anchor(dataset)}">{escape(dataset.dataset)} {escape(dataset.version)}</h2>']
    if dataset.findings:
        header = ("severity", "rule", "split", "count", "what was found")
        lines.append(_table(header, [_row(finding) for finding in dataset.findings]))
    else:
        lines.append("<p>Nothing was found.</p>")
    if samples := dataset.total.samples[: 2 * MAX_EXAMPLES]:
        lines += ["<h3>Pairs without a finding</h3>", *map(_figure, samples)]
    return "\n".join(lines)


def _anchor(dataset: DatasetReport) -> str:
    return escape(f"{dataset.dataset}-{dataset.version}")


def _row(finding: Finding) -> list[str]:
    rule = finding.rule
    return [
        f'<span class="{rule.severity}">{rule.severity}</span>',
        rule.name,
        escape(finding.split or "all"),
        f"{finding.count:,} {rule.unit}",
        escape(rule.meaning) + "".join(map(_figure, finding.examples)),
    ]


def _figure(example: Example) -> str:
    """Return an example with its picture, if it has one."""
    said = f"<br>“{_text(example.instruction)}”" if example.instruction else ""
    caption = f"{_text(example.place)}: {_text(example.text)}{said}"
    if example.picture is None:
        return f'<p class="example">{caption}</p>'
    picture = base64.b64encode(example.picture).decode()
    return (
        f'<figure><img src="data:image/jpeg;base64,{picture}" alt="{_text(example.place)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _text(text: str) -> str:
    """Return a text as HTML, with control characters as Python escapes."""
    return escape("".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already."""
    lines = [f"<tr>{''.join(f'<th>{cell}</th>' for cell in header)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    return "\n".join(["<table>", *lines, "</table>"])
