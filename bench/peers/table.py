"""The table of a comparison, the sentences that follow from its figures, and the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measure.tables import Column, Table, figure, new_figure, point_table, save_figure, spread

SETTING = ("metadata", "order", "batch_size", "num_workers")
"""Parameters of a point besides its peer."""


def comparison_table(result: Mapping[str, Any]) -> Table:
    """Return the table of a result, with the sentences and the notes on the peers below it."""
    is_mixture = result["datasets"] > 1
    columns: dict[str, Column] = {
        "sources": lambda point: str(sum(map(bool, point["repeats"][0]["counts"]))) if is_mixture else None,
        "samples/s": figure("samples_per_s", form=",.0f"),
        "(range)": spread("samples_per_s", ",.0f"),
        "of limit": figure("ratio", form=".3f"),
        "first batch s": figure("first_batch_s", form=".1f"),
        "p50 ms": figure("step_ms", "p50", form=".1f"),
        "p99 ms": figure("step_ms", "p99", form=".1f"),
        "CPU s/1000": figure("cpu_s_per_1000_pairs", form=".2f"),
        "memory MB": figure("peak_pss_bytes", form=",.0f", scale=1e-6),
        "copy MB": lambda point: _copy(result, point, "bytes", 1e-6, ",.1f"),
        "copy s": lambda point: _copy(result, point, "seconds", 1, ".1f"),
        "files": lambda point: _copy(result, point, "files", 1, ","),
        "steps": figure("steps", form=",.0f"),
        "off by": lambda point: f"{point['median']['mixing']['off']:.1f}" if is_mixture else None,
        "resume": lambda point: _ability(result, point, "resume"),
        "replay": lambda point: _ability(result, point, "replay"),
    }
    notes = []
    for peer_name, peer in result["peers"].items():
        source = f" ({peer['source']})" if peer["source"] else ""
        description = "; ".join(filter(None, (peer["what"], peer["note"], peer["versions"])))
        notes.append(f"{peer_name}: {description}{source}")
    return point_table(result["points"], columns, [*sentences(result), *notes])


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Return sentences on the run, and on the peers that were faster or slower than ours."""
    parameters, machine = result["parameters"], result["machine"]
    height, width = result["shape"]
    lines = [
        f"Medians of {parameters['repeat']} on {machine['cores']} cores of {machine['cpu']}; {result['pairs']:,} "
        f"{samples(result)} {height}x{width} frames, {result['datasets']} datasets; MB are 10^6 bytes."
    ]
    for phrase, exact in (("", True), (" but for the pixels", False)):
        names = result.get("checked", ())
        if checked := [name for name in names if result["peers"][name]["exact"] == exact]:
            lines.append(f"Equal to those of the root, all samples{phrase}: {', '.join(checked)}.")
    measured = [point for point in result["points"] if point["repeats"] and not point["error"]]
    for ours_point in measured:
        rivals = [point for point in measured if _setting(point) == _setting(ours_point) and point is not ours_point]
        if ours_point["point"]["peer"] != "ours" or not rivals:
            continue
        kinds: dict[str, list[str]] = {"faster than ours": [], "slower than ours": [], "no difference seen": []}
        low, high = _rates(ours_point)
        for point in rivals:
            ratio = point["median"]["samples_per_s"] / ours_point["median"]["samples_per_s"]
            least, most = _rates(point)
            # Overlapping ranges show no difference.
            kind = "faster than ours" if least > high else "slower than ours" if most < low else "no difference seen"
            kinds[kind].append(f"{point['name']} ({ratio:.2f})")
        parts = [f"{phrase}: {', '.join(names)}" for phrase, names in kinds.items() if names]
        alone = " (one measurement each is no more than a hint)" if parameters["repeat"] == 1 else ""
        setting = "metadata {}, {}, batches of {}, {} workers".format(*_setting(ours_point))
        lines.append(f"samples/s as a part of ours, {setting}{alone}: {'; '.join(parts)}")
    return lines


def _rates(point: Mapping[str, Any]) -> tuple[float, float]:
    """Return the lowest and the highest samples/s of the repeats."""
    rates = [run["samples_per_s"] for run in point["repeats"]]
    return min(rates), max(rates)


def samples(result: Mapping[str, Any]) -> str:
    """Return what the samples of a result are.

    >>> samples({}), samples({"frames": 1}), samples({"frames": 8})
    ('pairs of', 'single', 'windows of 8')
    """
    frames = result.get("frames", 2)
    return {1: "single", 2: "pairs of"}.get(frames, f"windows of {frames}")


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Write the plot as SVG and PNG, or nothing if no point was measured; ``path`` has no suffix."""
    points = [point for point in result["points"] if point["repeats"] and not point["error"]]
    points.sort(key=lambda point: point["median"]["samples_per_s"])
    if not points:
        return
    middle = [point["median"]["samples_per_s"] for point in points]
    below = [rate - _rates(point)[0] for rate, point in zip(middle, points, strict=True)]
    above = [_rates(point)[1] - rate for rate, point in zip(middle, points, strict=True)]
    colours = ["tab:blue" if point["point"]["peer"] == "ours" else "tab:gray" for point in points]
    figure, axes = new_figure(width=8, height=1.6 + 0.4 * len(points))
    axes.barh([point["name"] for point in points], middle, xerr=[below, above], color=colours, capsize=4)
    for position, rate in enumerate(middle):
        axes.text(rate + above[position], position, f"  {rate:,.0f}", va="center")
    limits = [run["limit_samples_per_s"] for point in points for run in point["repeats"] if run["limit_samples_per_s"]]
    if limits:
        # A band, because the limit of a shared machine changes within a run.
        low, high = min(limits), max(limits)
        axes.axvspan(low, high, alpha=0.2, zorder=0, label=f"decoding alone: {low:,.0f} to {high:,.0f}")
        axes.legend(loc="lower right")
    axes.set_xlim(0, 1.2 * max([*middle, *limits]))
    height, width = result["shape"]
    axes.set_xlabel(f"samples/s ({samples(result)} frames per second); bars: median, whiskers: lowest and highest")
    axes.set_title(f"{result['datasets']} datasets, {width}x{height} JPEG, {result['pairs']:,} samples")
    save_figure(figure, path)


def mixing(counts: Sequence[int], weights: Sequence[float]) -> dict[str, Any]:
    """Compare the counts of datasets with their weights; ``off`` is the largest deviation in pairs.

    >>> mixing([3, 1], [0.5, 0.5])
    {'shares': [0.75, 0.25], 'off': 1.0, 'off_share': 0.25}
    """
    total = sum(counts)
    shares = [count / total for count in counts]
    off = max(abs(count - total * weight) for count, weight in zip(counts, weights, strict=True))
    return {"shares": shares, "off": off, "off_share": off / total}


def _setting(point: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(point["point"][key] for key in SETTING)


def _copy(result: Mapping[str, Any], point: Mapping[str, Any], key: str, scale: float, form: str) -> str | None:
    value = result["copies"].get(point["point"]["peer"], {}).get(key)
    return None if value is None else f"{value * scale:{form}}"


def _ability(result: Mapping[str, Any], point: Mapping[str, Any], key: str) -> str | None:
    ability = result["peers"][point["point"]["peer"]][key]
    return None if ability == "-" else str(ability)
