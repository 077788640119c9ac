"""``python -m bench.soak``: stream for an hour with workers killed, states set and evaluation loops in between.

Every ``--event-every`` seconds a random event happens to the run: a worker is killed, or stopped and continued; the
iterator is rebuilt from its state; the loader is new; the state of a random step up to 10^8 is set; an evaluation loop
runs. Before each event, memory of all processes is recorded, and batches since the last event are compared by hash with
those of a new loader in a fresh process. The slope of memory leaves out mapped files: their share depends on other
programs that use the same libraries. The exit code is 1 if a batch differed, memory grew (by more than three standard
errors of the slope, and 1 MB an hour), or something was left behind.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure.command import print_result, run_command
from bench.measure.machine import describe_machine
from bench.measure.plots import new_figure, save_figure
from bench.measure.tables import markdown_table
from bench.soak.run import Soak
from convert.report import human_seconds
from stream.loader.state import write_json
from stream.storage.arguments import Parser, interrupt_on_kill, whole

RESULT_FILE = "soak.json"
PLOT_FILE = "soak"
DEMO_ROOT = Path("build/demo/oxe")
_LIBRARIES = ("array-record", "grain", "numpy", "psutil", "pyarrow", "simplejpeg")


def run_soak(options: argparse.Namespace) -> dict[str, Any]:
    """Run the soak and return the content of ``--json``.

    Raises:
        stream.StreamError, stream.storage.errors.FormatError: The root cannot be loaded.
    """
    train = {
        "root": str(options.root),
        "mixture": options.mixture,
        "split": "train",
        "batch_size": options.batch_size,
        "num_workers": options.num_workers,
        "seed": options.seed,
    }
    val = {**train, "split": "val", "num_workers": 1, "num_steps": options.val_steps}
    soak = Soak(
        train,
        val,
        seconds=options.minutes * 60,
        event_every=options.event_every,
        seed=options.seed,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    interrupted = False
    try:
        soak.run()
    except KeyboardInterrupt:
        interrupted = True
    return {
        "date": time.strftime("%Y-%m-%d"),
        "parameters": {**train, "minutes": options.minutes, "event_every": options.event_every},
        "machine": describe_machine(_LIBRARIES),
        **soak.result,
        "interrupted": interrupted,
    }


def format_result(result: Mapping[str, Any]) -> str:
    """Return the findings as a table in Markdown."""
    memory = result["memory"]
    rise, error = memory["slope_bytes_per_hour"], memory["slope_error_per_hour"]
    growth = "-"
    if rise is not None and error is not None:
        within = "zero within two standard errors" if abs(rise) <= 2 * error else "beyond two standard errors of zero"
        growth = f"{rise / 1e6:+.1f} MB an hour, standard error {error / 1e6:.1f}: {within}"
    peak, final = ((memory[key] or 0) / 1e6 for key in ("peak_pss_bytes", "final_pss_bytes"))
    rows = [
        ("time", human_seconds(result["seconds"])),
        ("batches, samples", f"{result['batches']:,}, {result['samples']:,}"),
        ("compared with a fresh loader's", f"{result['checked']:,} batches"),
        ("memory of all processes, peak and last", f"{peak:,.0f} MB, {final:,.0f} MB"),
        ("slope of memory without mapped files", growth),
    ]
    for kind, count in result["events"].items():
        took = result["recovery_s"].get(kind)
        told = f", to the next batch {took['median']:.2f} s, at most {took['max']:.2f} s" if took else ""
        rows.append((kind, f"{count:,} times{told}"))
    rows.append(("problems", "; ".join(result["problems"]) or "none"))
    return markdown_table(["", ""], rows, right=False)


def plot_memory(result: Mapping[str, Any], path: Path) -> None:
    """Draw memory over time as SVG and PNG, with the line of the reported slope."""
    memory = result["memory"]
    times, everything, own = (np.array([sample[column] for sample in memory["over_time"]]) for column in range(3))
    minutes, own = times / 60, own / 1e6
    figure, axes = new_figure(width=7, height=3.2)
    axes.plot(minutes, everything / 1e6, ".", color="0.6", label="all, with a share of mapped files")
    axes.plot(minutes, own, ".", label="heap, stacks and batches")
    if memory["slope_bytes_per_hour"] is not None:
        fitted = minutes[memory["left_out_samples"] :]
        level = own[memory["left_out_samples"] :].mean() + memory["slope_bytes_per_hour"] / 6e7 * (
            fitted - fitted.mean()
        )
        axes.plot(fitted, level, "k-", linewidth=1)
    axes.set(xlabel="minutes", ylabel="MB, all processes", title="Memory of trainer and workers")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")
    save_figure(figure, path)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a number above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m bench.soak", description="Stream for a long time, with trouble in between.")
    add = parser.add_argument
    add("--minutes", type=_positive, default=60, help="(default: %(default)s)")
    add("--root", type=Path, default=DEMO_ROOT, help="converted data (default: %(default)s)")
    add("--mixture", default="oxe29", help="(default: %(default)s)")
    add("--val-steps", type=whole(1), default=20, help="batches of an evaluation loop (default: %(default)s)")
    add("--batch-size", type=whole(1), default=32, help="(default: %(default)s)")
    add("--num-workers", type=whole(1), default=2, help="(default: %(default)s)")
    add("--event-every", type=_positive, default=15, metavar="S", help="seconds between events (default: %(default)s)")
    add("--seed", type=whole(0), default=0, help="seed of samples and events (default: %(default)s)")
    add("--out", type=Path, metavar="DIR", help=f"folder for {RESULT_FILE} and a plot of memory over time")
    add("--json", action="store_true", help="print all figures instead of a table")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    interrupt_on_kill()

    def work() -> int:
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
        result = run_soak(options)
        if options.out is not None:
            write_json(options.out / RESULT_FILE, result)
            plot_memory(result, options.out / PLOT_FILE)
        print_result(result, format_result, as_json=options.json)
        if result["problems"]:
            return 1
        return 130 if result["interrupted"] else 0

    return run_command(work, place=options.out)
