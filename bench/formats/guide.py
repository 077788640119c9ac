"""The decision guide of the format study: every sentence follows from comparing the numbers.

Of two formats one is better only if the least of its repeats beats the most of the other's; otherwise they are named
together. With one repeat there is no range, so the best figure is named and the guide says that it is of one
measurement.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.formats.readers import SHUFFLES_ALL, batches_under_way
from bench.formats.stores import NAMES
from bench.measure.tables import markdown_table, megabytes, number
from convert.report import human_bytes

_BUSY = 0.05


class Block(NamedTuple):
    """A part of the guide. kind: ``title``, ``heading``, ``text``, ``list``, ``table`` (the first row is its header) or
    ``figure`` (name of the plot, caption)."""

    kind: str
    content: Any


class _Ranked(NamedTuple):
    """Formats from best to worst by a figure. values: of each, over the repeats. tied: formats as good as the first."""

    names: list[str]
    values: dict[str, list[float]]
    tied: list[str]


def best_point(result: Mapping[str, Any], name: str, order: str) -> Mapping[str, Any] | None:
    """Return the point of a format and order with the most samples/s; None if there is none without an error."""
    points = [
        point
        for point in result["points"]
        if (point["point"]["format"], point["point"]["order"]) == (name, order)
        and point["repeats"]
        and not point["error"]
    ]
    return max(points, key=lambda point: float(point["median"]["samples_per_s"]), default=None)


def guide_blocks(result: Mapping[str, Any], *, plots: Mapping[str, str], remark: str | None = None) -> list[Block]:
    """Return the guide.

    Args:
        result: of the study.
        plots: captions by name.
        remark: stands in place of plots that are missing.
    """
    blocks = [Block("title", "Which format for frame pairs?"), Block("text", _measured(result))]
    blocks += [Block("text", told) for told in (_busy(result), _short(result)) if told]
    if choices := _choices(result):
        blocks += [Block("heading", "What to take for what"), Block("table", choices)]
    for order in result["parameters"]["orders"]:
        rows = [row for name in result["parameters"]["formats"] if (row := _best_row(result, name, order))]
        if rows:
            blocks += [Block("heading", f"Best setting of each format, {order}"), Block("table", [_HEADER, *rows])]
    if findings := [*_workers(result), *_shuffling(result)]:
        blocks += [Block("heading", "What else the numbers say"), Block("list", findings)]
    blocks += [Block("heading", "On disk"), Block("table", _disk(result))]
    if plots or remark:
        blocks.append(Block("heading", "Plots"))
    blocks += [Block("figure", (name, caption)) for name, caption in plots.items()]
    if remark:
        blocks.append(Block("text", remark))
    notes = [f"{NAMES[name]}: {note}" for name, note in result["notes"].items()]
    blocks += [Block("heading", "What is special about each"), Block("list", notes)]
    failed = [f"{point['name']}: {point['error']}" for point in result["points"] if point["error"]]
    if failed:
        blocks += [Block("heading", f"Not measured: {len(failed)} of {len(result['points'])}"), Block("list", failed)]
    return blocks


def rank(values: Mapping[str, Sequence[float]], *, most: bool) -> _Ranked:
    """Order formats by their medians; formats whose ranges overlap with the first one's are tied with it.

    >>> rank({"a": [5.0, 6.0], "b": [9.0, 7.0], "c": [7.5, 8.0]}, most=True).tied
    ['b', 'c']
    >>> rank({"a": [5.0], "b": [9.0]}, most=False).tied
    ['a']
    """
    kept = {name: sorted(found) for name, found in values.items() if found}
    names = sorted(kept, key=lambda name: _middle(kept[name]), reverse=most)
    tied = [name for name in names if name == names[0] or not _apart(kept[name], kept[names[0]])]
    return _Ranked(names, {name: list(kept[name]) for name in names}, tied)


def _apart(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two ranges do not overlap."""
    return min(one) > max(other) or min(other) > max(one)


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _measured(result: Mapping[str, Any]) -> str:
    options, pairs, machine = result["parameters"], result["pairs"], result["machine"]
    count = sum(1 for point in result["points"] if point["repeats"] and not point["error"])
    checked = sum(1 for store in result["stores"].values() if store.get("checked"))
    compared = (
        f"In one pass {checked} of {len(result['stores'])} stores were seen to give exactly the pixels of the source."
        if options["check"]
        else "What the stores give was not compared with the source."
    )
    repeats = (
        f"{options['repeat']} times in alternation; ranges are the least and the most of these"
        if options["repeat"] > 1
        else "once, so there is no telling which differences are noise"
    )
    return (
        f"{pairs['count']:,} pairs of {pairs['height']}x{pairs['width']} frames, {human_bytes(pairs['bytes'])} of "
        f"JPEG, on {machine['cores']} cores of {machine['cpu']} with {human_bytes(machine['memory_bytes'])} of memory. "
        f"{count} of {len(result['points'])} points were measured, {options['steps']} batches each after "
        f"{options['warmup']} of warm-up at least, {repeats}. The trainer does nothing but take batches. {compared}"
    )


def _busy(result: Mapping[str, Any]) -> str | None:
    """Say how much of the machine went to other programs, if that is more than a twentieth."""
    runs = [run for point in result["points"] for run in point["repeats"]]
    others = [max(0.0, run["machine_cpu_cores"] - run["cpu_cores"]) for run in runs]
    cores = result["machine"]["cores"]
    if not others or _middle(others) <= _BUSY * cores:
        return None
    return (
        f"Other programs took {_middle(others):.1f} of {cores} cores meanwhile (median over all measurements, "
        f"{max(others):.1f} at most), so the figures are lower than those of a quiet machine, and not all alike."
    )


def _short(result: Mapping[str, Any]) -> str | None:
    """Say so if what was under way when the clock started is more than a tenth of what was measured."""
    steps, under_way = result["parameters"]["steps"], batches_under_way(max(result["parameters"]["workers"]))
    if steps >= 10 * under_way:
        return None
    return (
        f"Up to {under_way} batches may have been under way when the clock of a point started, and {steps} were "
        "measured: small differences mean nothing."
    )


def _choices(result: Mapping[str, Any]) -> list[list[str]]:
    """A row for each thing that one may want, with the formats that are best at it."""
    options = result["parameters"]
    rows = [["if you want", "take" if options["repeat"] > 1 else "best of this one measurement", "figures"]]

    def add(wish: str, values: Mapping[str, Sequence[float]], show: Callable[[float], str], *, most: bool) -> None:
        ranked = rank(values, most=most)
        if not ranked.names:
            return
        figures = [f"{NAMES[name]} {_range(ranked.values[name], show)}" for name in ranked.tied]
        if later := [name for name in ranked.names if name not in ranked.tied]:
            figures.append(f"next {NAMES[later[0]]} {_range(ranked.values[later[0]], show)}")
        rows.append([wish, " or ".join(NAMES[name] for name in ranked.tied), "; ".join(figures)])

    for order in options["orders"]:
        points = _best_points(result, order)
        rates = {name: _runs(point, "samples_per_s") for name, point in points.items()}
        add(f"most samples/s, {order}", rates, lambda value: f"{value:,.0f}/s", most=True)
        everywhere = {name: values for name, values in rates.items() if name in SHUFFLES_ALL}
        if order == "shuffled" and len(everywhere) < len(rates):
            add(f"most samples/s, {order} over all pairs", everywhere, lambda value: f"{value:,.0f}/s", most=True)
    points = _best_points(result, options["orders"][-1])
    at = f"at its best setting, {options['orders'][-1]}"
    first = {name: _runs(point, "first_batch_s") for name, point in points.items()}
    add(f"the first batch soonest, {at}", first, lambda value: f"{value:.2f} s", most=False)
    late = {name: [run["step_ms"]["p99"] for run in point["repeats"]] for name, point in points.items()}
    per_pair = {name: [value / point["point"]["batch_size"] for value in late[name]] for name, point in points.items()}
    add(f"the least p99 of a step for each pair of its batch, {at}", per_pair, lambda v: f"{v:.2f} ms", most=False)
    memory = {name: _runs(point, "peak_pss_bytes") for name, point in points.items()}
    add(f"least memory, {at}", memory, human_bytes, most=False)
    cpu = {
        name: [1000 * run["cpu_cores"] / run["samples_per_s"] for run in point["repeats"]]
        for name, point in points.items()
    }
    add(f"least CPU time, {at}", cpu, lambda value: f"{value:.2f} s for 1,000 pairs", most=False)
    stores = {name: store for name, store in result["stores"].items() if store["disk_bytes"] is not None}
    add("least disk", {name: [store["disk_bytes"]] for name, store in stores.items()}, human_bytes, most=False)
    add("fewest files", {name: [store["files"]] for name, store in stores.items()}, lambda v: f"{v:,.0f}", most=False)
    return rows if len(rows) > 1 else []


def _best_points(result: Mapping[str, Any], order: str) -> dict[str, Mapping[str, Any]]:
    found = {name: best_point(result, name, order) for name in result["parameters"]["formats"]}
    return {name: point for name, point in found.items() if point is not None}


def _runs(point: Mapping[str, Any], key: str) -> list[float]:
    return [run[key] for run in point["repeats"] if run[key] is not None]


def _range(values: Sequence[float], show: Callable[[float], str]) -> str:
    middle = show(_middle(values))
    return middle if len(values) == 1 else f"{middle} ({show(min(values))} to {show(max(values))})"


_HEADER = [
    *("format", "samples/s", "least to most", "batch size", "workers", "step p50 / p90 / p99 (ms)", "first batch (s)"),
    *("memory, peak PSS (MB)", "CPU (cores)", "GPU (%)"),
]


def _best_row(result: Mapping[str, Any], name: str, order: str) -> list[str] | None:
    point = best_point(result, name, order)
    if point is None:
        return None
    middle, rates = point["median"], _runs(point, "samples_per_s")
    step = middle["step_ms"]
    return [
        NAMES[name],
        f"{middle['samples_per_s']:,.0f}",
        f"{min(rates):,.0f} to {max(rates):,.0f}",
        str(point["point"]["batch_size"]),
        str(point["point"]["workers"]),
        " / ".join(f"{step[key]:.1f}" for key in ("p50", "p90", "p99")),
        f"{middle['first_batch_s']:.2f}",
        megabytes(middle["peak_pss_bytes"]),
        f"{middle['cpu_cores']:.1f}",
        number(middle["gpu_percent"], ".0f"),
    ]


def _workers(result: Mapping[str, Any]) -> list[str]:
    """What more workers change, at the batch size of each format's best point."""
    told, options = [], result["parameters"]
    fewest, most = min(options["workers"]), max(options["workers"])
    if fewest == most:
        return []
    for order in options["orders"]:
        for name, best in _best_points(result, order).items():
            batch = best["point"]["batch_size"]
            ends = [_find(result, name, order, batch, workers) for workers in (fewest, most)]
            if ends[0] is not None and ends[1] is not None:
                what = f"{NAMES[name]}, {order}, batches of {batch}: {most} workers instead of {fewest}"
                told.append(_compare(what, ends[1], ends[0]))
    return told


def _shuffling(result: Mapping[str, Any]) -> list[str]:
    """What shuffling costs each format, best setting against best setting."""
    if not {"sequential", "shuffled"} <= set(result["parameters"]["orders"]):
        return []
    sequential, shuffled = _best_points(result, "sequential"), _best_points(result, "shuffled")
    return [
        _compare(f"{NAMES[name]}: shuffled instead of sequential, each at its best setting", shuffled[name], point)
        for name, point in sequential.items()
        if name in shuffled
    ]


def _find(result: Mapping[str, Any], name: str, order: str, batch: int, workers: int) -> Mapping[str, Any] | None:
    wanted = {"format": name, "order": order, "batch_size": batch, "workers": workers}
    found = (p for p in result["points"] if p["point"] == wanted and p["repeats"] and not p["error"])
    return next(found, None)


def _compare(what: str, new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    ours, theirs = _runs(new, "samples_per_s"), _runs(old, "samples_per_s")
    factor = _middle(ours) / _middle(theirs)
    figures = f"{_middle(ours):,.0f} against {_middle(theirs):,.0f} samples/s"
    if len(ours) > 1 and not _apart(ours, theirs):
        return f"{what}: no difference that the repeats can tell ({figures})."
    return f"{what}: {factor:.2f} times the throughput ({figures})."


def _disk(result: Mapping[str, Any]) -> list[list[str]]:
    rows = [["format", "on disk", "compared with the JPEGs alone", "files", "time to write (s)"]]
    for name, store in result["stores"].items():
        if store["disk_bytes"] is None:
            rows.append([NAMES[name], "-", "-", "-", store["error"]])
        else:
            share = store["disk_bytes"] / result["pairs"]["bytes"]
            rows.append(
                [
                    NAMES[name],
                    human_bytes(store["disk_bytes"]),
                    f"{share:.2f} times",
                    f"{store['files']:,}",
                    f"{store['write_s']:.2f}",
                ]
            )
    return rows


def render_markdown(blocks: Sequence[Block], *, folder: str) -> str:
    """Return the guide as Markdown; plots are the PNGs in ``folder``."""
    parts = []
    for kind, content in blocks:
        if kind == "table":
            header, *rows = content
            parts.append(markdown_table(header, rows, right=False))
        elif kind == "list":
            parts.append("\n".join(f"- {line}" for line in content))
        elif kind == "figure":
            parts.append(f"![{content[1]}]({folder}/{content[0]}.png)\n\n{content[1]}")
        else:
            parts.append({"title": "# ", "heading": "## ", "text": ""}[kind] + content)
    return "\n\n".join(parts) + "\n"


def render_html(blocks: Sequence[Block], *, folder: Path) -> str:
    """Return the guide as one HTML file that needs no other; the SVGs of ``folder`` are part of it."""
    parts = []
    for kind, content in blocks:
        if kind == "table":
            head, *rows = content
            lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
            lines += ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
            parts.append("<div class=wide><table>\n" + "\n".join(lines) + "\n</table></div>")
        elif kind == "list":
            parts.append("<ul>\n" + "\n".join(f"<li>{html.escape(line)}</li>" for line in content) + "\n</ul>")
        elif kind == "figure":
            drawing = re.sub(r"^.*?(?=<svg)", "", (folder / f"{content[0]}.svg").read_text(), flags=re.DOTALL)
            caption = html.escape(content[1])
            parts.append(f"<figure class=wide>\n{drawing}\n<figcaption>{caption}</figcaption>\n</figure>")
        else:
            tag = {"title": "h1", "heading": "h2", "text": "p"}[kind]
            parts.append(f"<{tag}>{html.escape(content)}</{tag}>")
    title = html.escape(next((content for kind, content in blocks if kind == "title"), ""))
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>\n{_CSS}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


_CSS = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222;
  background: #fff; }
table { border-collapse: collapse; font-size: 14px; }
th, td { border-bottom: 1px solid #ddd; padding: .3em .7em; text-align: left; vertical-align: top; }
th { border-bottom-width: 2px; }
.wide { overflow-x: auto; margin: 1em 0; }
svg { max-width: 100%; height: auto; font-family: system-ui, sans-serif; }
figcaption { color: #555; font-size: 14px; }
"""
