"""Result of ``convert.doctor`` as text, as JSON, and as one HTML file without other files or scripts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from convert.doctor.dataset import DatasetReport
from convert.doctor.findings import Example, Finding, count_severities
from convert.doctor.rules import SEVERITIES
from convert.report import count_noun, format_table, human_seconds
from stream.storage.arguments import printable
from stream.storage.files import write_whole

_TEXT = 60
"""Letters of an instruction in a line."""
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
<h1>{root}</h1><p>{summary}. --frames {frames}, --seed {seed}.</p>
{datasets}
{sections}
</body></html>
"""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All datasets that were looked at; ``seconds`` is the time that it took."""

    root: str
    frames: int
    seed: int
    seconds: float
    datasets: Sequence[DatasetReport]

    @property
    def findings(self) -> list[Finding]:
        """Findings of all datasets."""
        return [finding for dataset in self.datasets for finding in dataset.findings]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``--json``."""
        return {
            "root": self.root,
            "frames": self.frames,
            "seed": self.seed,
            **count_severities(self.findings),
            "datasets": [dataset.to_json() for dataset in self.datasets],
            "findings": [
                {"dataset": dataset.dataset, "version": dataset.version, **finding.to_json()}
                for dataset in self.datasets
                for finding in dataset.findings
            ],
        }

    def to_text(self) -> str:
        """Return a table of the datasets, the findings with examples, and a summary."""
        rows = self.table()
        lines = [format_table(list(rows[0]), [list(row.values()) for row in rows])]
        found = [(dataset.dataset, finding) for dataset in self.datasets for finding in dataset.findings]
        for dataset, finding in sorted(found, key=lambda each: SEVERITIES.index(each[1].rule.severity)):
            lines += ["", *_describe(dataset, finding)]
        return "\n".join([*lines, "", self.summary()])

    def table(self) -> list[dict[str, str | int]]:
        """Return the cells of each dataset by their header."""
        rows = []
        for dataset in self.datasets:
            entry, pairs = dataset.to_json(), dataset.total.pairs
            row: dict[str, str | int] = {"dataset": dataset.dataset, "splits": ", ".join(dataset.splits) or "-"}
            row |= {"episodes": entry["episodes"], "records": entry["records"], "looked at": pairs}
            row["frozen"] = f"{dataset.total.frozen / pairs:.0%}" if pairs else "-"
            row.update(count_severities(dataset.findings))
            rows.append(row)
        return rows

    def summary(self) -> str:
        """Return one line about what was looked at and how much was found."""
        counts = count_severities(self.findings)
        found = ", ".join(count_noun(counts[f"{severity}s"], severity) for severity in SEVERITIES)
        datasets = count_noun(len(self.datasets), "dataset")
        pairs = sum(dataset.total.pairs for dataset in self.datasets)
        return f"{found} in {datasets}: all indexes and {pairs:,} pairs of frames, {human_seconds(self.seconds)}"


def _describe(dataset: str, finding: Finding) -> list[str]:
    rule, where = finding.rule, f"{dataset} {finding.split or ''}".rstrip()
    unit = rule.unit if finding.count != 1 else rule.unit.removesuffix("s")
    lines = [f"{rule.severity}: {where}: {rule.name}, {finding.count:,} {unit}: {rule.meaning}"]
    for example in finding.examples:
        said = printable(example.instruction, latin=True)
        said = f" ({said[:_TEXT]}{'...' if len(said) > _TEXT else ''})" if said else ""
        lines.append(f"  {example.place}: {printable(example.text, latin=True)}{said}")
    return lines


def write_page(path: Path, diagnosis: Diagnosis) -> None:
    """Write the page atomically, with every text escaped; raises OSError if the folder is not writable."""
    overview, sections, rows = [], [], diagnosis.table()
    for number, (dataset, row) in enumerate(zip(diagnosis.datasets, rows, strict=True)):
        name, *cells = (_text(f"{cell:,}" if isinstance(cell, int) else cell) for cell in row.values())
        overview.append([f'<a href="#{number}">{name}</a>', *cells])
        sections.append(f'<h2 id="{number}">{name} {_text(dataset.version)}</h2>')
        found = [_cells(finding) for finding in dataset.findings]
        sections.append(_table(_COLUMNS, found) if found else "<p>Nothing was found.</p>")
        if dataset.total.samples:
            sections += ["<h3>Pairs without a finding</h3>", *map(_figure, dataset.total.samples)]
    page = _PAGE.format(
        root=_text(diagnosis.root),
        summary=_text(diagnosis.summary()),
        frames=diagnosis.frames,
        seed=diagnosis.seed,
        datasets=_table(list(rows[0]), overview),
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
