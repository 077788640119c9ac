"""The table of the peers and the sentences below it, made from the figures of a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure.tables import markdown_table, megabytes, number
from convert.report import format_table

_HEADER = (
    "peer",
    "sources",
    "samples/s",
    "(range)",
    "of limit",
    "first batch s",
    "p50 ms",
    "p99 ms",
    "CPU s/1000",
    "PSS MB",
    "copy MB",
    "copy s",
    "steps",
    "off by",
    "resume",
    "replay",
)


def format_text(result: Mapping[str, Any]) -> str:
    """Return the table for a terminal, with what failed and the sentences below it."""
    lines = [format_table(_HEADER, _rows(result))]
    lines += [f"{point['name']}: {point['error']}" for point in result["points"] if point["error"]]
    return "\n".join([*lines, *sentences(result)])


def format_markdown(result: Mapping[str, Any]) -> str:
    """Return the same as Markdown, with the notes on the peers."""
    lines = [markdown_table(_HEADER, _rows(result)), "", *(f"{sentence}\n" for sentence in sentences(result))]
    for name, peer in result["peers"].items():
        lines.append(f"- {name}: {peer['what']}{'; ' + peer['note'] if peer['note'] else ''} ({peer['source']})")
    lines += [f"- {point['name']} failed: {point['error']}" for point in result["points"] if point["error"]]
    return "\n".join(lines) + "\n"


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Say what the figures are, and which peers were ahead of ours or behind it."""
    parameters, machine = result["parameters"], result["machine"]
    told = [
        f"medians of {parameters['repeat']} on {machine['cores']} cores of {machine['cpu']}; batches of "
        f"{parameters['batch_size']}, {parameters['num_workers']} workers, {result['pairs']:,} pairs of "
        f"{result['datasets']} datasets; MB are 10^6 bytes; 'off by' is the most pairs by which a dataset's count was "
        "off its weight"
    ]
    measured = {point["name"]: point for point in result["points"] if point["repeats"] and not point["error"]}
    for metadata in parameters["metadata"]:
        own = measured.get(point_name("ours", "", metadata, parameters["metadata"]))
        others = [point for point in measured.values() if point["point"]["metadata"] == metadata and point is not own]
        if own is None or not others:
            continue
        ahead: list[str] = []
        behind: list[str] = []
        level: list[str] = []
        for point in others:
            ratio = point["median"]["samples_per_s"] / own["median"]["samples_per_s"]
            text = f"{point['name']} ({ratio:.2f} of ours)"
            # Ranges that overlap are no difference that was seen.
            low, high = span(point)
            own_low, own_high = span(own)
            (ahead if low > own_high else behind if high < own_low else level).append(text)
        parts = [
            f"{what}: {', '.join(names)}"
            for what, names in (("ahead of ours", ahead), ("behind ours", behind), ("not told apart from ours", level))
            if names
        ]
        alone = " (one measurement each, which is no more than a hint)" if parameters["repeat"] == 1 else ""
        told.append(f"samples/s, metadata {metadata}{alone}: {'; '.join(parts)}")
    return told


def point_name(peer: str, variant: str, metadata: str, all_metadata: Sequence[str]) -> str:
    """Return the name of a point: peer and variant, and the metadata where there are several.

    >>> point_name("tfdata", "sample", "none", ["full", "none"]), point_name("ours", "", "full", ["full"])
    ('tfdata:sample/none', 'ours')
    """
    name = f"{peer}:{variant}" if variant else peer
    return f"{name}/{metadata}" if len(all_metadata) > 1 else name


def span(point: Mapping[str, Any]) -> tuple[float, float]:
    """Lowest and highest samples/s of the repeats."""
    rates = [run["samples_per_s"] for run in point["repeats"]]
    return min(rates), max(rates)


def mixing(counts: Sequence[int], weights: Sequence[float]) -> dict[str, Any]:
    """Compare counts of datasets with their weights; ``off`` is the largest deviation in pairs.

    >>> mixing([3, 1], [0.5, 0.5])
    {'shares': [0.75, 0.25], 'off': 1.0, 'off_share': 0.25}
    """
    total = sum(counts)
    shares = [count / total for count in counts]
    off = max(abs(count - total * weight) for count, weight in zip(counts, weights, strict=True))
    return {"shares": shares, "off": off, "off_share": off / total}


def _rows(result: Mapping[str, Any]) -> list[list[object]]:
    rows = []
    for point in result["points"]:
        peer = result["peers"][point["point"]["peer"]]
        if point["error"] or not point["repeats"]:
            rows.append([point["name"], "-", "failed", *["-"] * (len(_HEADER) - 3)])
            continue
        median, runs = point["median"], point["repeats"]
        low, high = span(point)
        copy = result["copies"].get(point["point"]["peer"], {})
        rows.append(
            [
                point["name"],
                str(sum(count > 0 for count in runs[0]["counts"])),
                round(median["samples_per_s"]),
                f"{low:,.0f}-{high:,.0f}",
                number(median["ratio"], ".3f"),
                f"{median['first_batch_s']:.1f}",
                f"{median['step_ms']['p50']:.1f}",
                f"{median['step_ms']['p99']:.1f}",
                f"{median['cpu_s_per_1000_pairs']:.2f}",
                megabytes(median["peak_pss_bytes"]),
                megabytes(copy.get("bytes")),
                number(copy.get("seconds"), ".1f"),
                round(statistics.median(run["steps"] for run in runs)),
                f"{median['mixing']['off']:.1f}",
                peer["resume"],
                peer["replay"],
            ]
        )
    return rows
