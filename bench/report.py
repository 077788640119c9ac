"""``python -m bench.report``: run all studies in turn and write ``docs/benchmarks.md``.

Each study (`studies.yaml`) is a command in a fresh process; its result stays below ``--work``. An interrupted
run continues: a study with a result of the same command is not run again without ``--fresh``. A study that fails is
noted on the page. The other studies run, and the exit code is 1. Sections of the page without a study, and those of
studies without a result, stay as they are.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from bench.convert.command import convert_table
from bench.loader.command import loader_table
from bench.loader.train import train_table
from bench.measure.command import Command, Output, Result, tell
from bench.measure.options import one_of, option, several
from bench.measure.session import start
from bench.measure.tables import colors, new_figure, save_figure
from bench.peers.table import comparison_table
from stream.storage.files import write_atomically

Kind = Literal["loader", "loader.train", "peers", "convert"]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question and the command that answers it; `studies.yaml` describes the fields."""

    key: str
    title: str
    kind: Kind = "loader"
    minutes: float = 1
    seen: str = "-"
    arguments: str = ""
    short: str = ""
    repeats: Sequence[int] = (2, 5)
    plot: str | None = None
    files: Sequence[str] = ()

    @property
    def module(self) -> str:
        """Return the module that ``python -m`` runs."""
        return f"bench.{self.kind}"

    def command(self, roots: dict[str, str], *, full: bool) -> list[str]:
        """Return the arguments of the command, without ``--out`` and ``--json``."""
        root = "" if "root" in self.arguments or self.kind == "convert" else "--root {root}"
        words = shlex.split(f"{root} {self.arguments} {'' if full else self.short}")
        return [*(argument.format(**roots) for argument in words), "--repeat", str(self.repeats[full])]


_FILE = Path(__file__).with_name("studies.yaml")
STUDIES = tuple(Study(key=key, **about) for key, about in yaml.safe_load(_FILE.read_text()).items())
"""All studies, in the order of the page."""


@dataclass
class Outcome:
    """The outcome of a study: its result or its error; ``kept`` is a result of an earlier run."""

    study: Study
    command: list[str]
    result: dict[str, Any] | None = None
    error: str | None = None
    date: str = ""
    kept: bool = False
    plots: tuple[str, ...] = ()


def format_page(outcomes: Sequence[Outcome], before: str = "") -> str:
    """Return the page with the other sections of the page before: of studies in their places, others at the end."""
    done = {outcome.study.title: _section(outcome) for outcome in outcomes}
    shown = {**_sections(before), **done}
    titles = dict.fromkeys([*(study.title for study in STUDIES), *done, *shown])
    return "\n".join([_HEAD, *(shown[title] for title in titles if title in shown)])


def _sections(page: str) -> dict[str, str]:
    """Return the text of each section of a page by its title."""
    sections: dict[str, str] = {}
    title, is_code = "", False
    for line in page.splitlines():
        is_code ^= line.startswith("```")
        if line.startswith("## ") and not is_code:
            title = line.removeprefix("## ").strip()
        if title:
            sections[title] = sections.get(title, "") + line + "\n"
    return {title: option_text.rstrip() + "\n" for title, option_text in sections.items()}


_HEAD = """# Benchmarks

`make bench` writes the tables of this page, each below its command, with date, machine and versions
(`python -m bench.report --help` explains how to repeat one study, or to run longer). Sections of other commands stay as
they are. Other figures are next to their explanation: [reading in place](object-stores.md#requests-and-money),
[codecs](windows.md#which-codec), [large machines](measuring.md#large-machines), [large roots](browse.md#large-roots),
[cost](cluster.md#cost), [LeRobot videos](lerobot.md#speed-and-memory).

The data are the sample of `make demo`: synthetic moving pictures with the true schema of all 29 datasets, 256x256 JPEG
frames at quality 95. *Limit* is the speed of as many processes that only decode the same JPEGs from memory, measured in
turns in the same run. *Ratio* is samples/s divided by the limit. *CPU ratio* is the part of the loader's CPU time that
decoding alone takes. *to first* compares a point with the first one of its table, within a repeat. Values are medians
over the repeats, ranges are from the least to the most. MB are 10^6 bytes, memory is the proportional set size of all
processes together. *Source project* is the tf.data pipeline that this loader replaces, measured on another machine.
"""
_TABLES = {"loader": loader_table, "loader.train": train_table, "convert": convert_table, "peers": comparison_table}


def _section(outcome: Outcome) -> str:
    study = outcome.study
    paragraphs = [f"## {study.title}"]
    if study.seen != "-":
        paragraphs.append(f"Source project: {study.seen}")
    command = shlex.join(["python", "-m", study.module, *outcome.command])
    paragraphs.append(f"`{command}`{f', {outcome.date}' if outcome.date else ''}")
    if outcome.error is not None:
        paragraphs.append(f"Not measured: {outcome.error}")
    if outcome.result is not None:
        paragraphs += [_machine(outcome.result["machine"]), _TABLES[study.kind](outcome.result).markdown()]
    paragraphs += [f"![{study.title}]({plot})" for plot in outcome.plots]
    return "\n\n".join(paragraphs) + "\n"


def _machine(machine: Result) -> str:
    versions = ", ".join(f"{library} {version}" for library, version in machine["versions"].items() if version)
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 1e9:.0f} GB of memory, "
        f"{machine['system']}, Python {machine['python']}; {versions}."
    )


def add_plots(outcome: Outcome, folder: Path, page: Path) -> None:
    """Put the plots of a study next to the page, in ``benchmarks/``."""
    pictures = page.parent / "benchmarks"
    pictures.mkdir(parents=True, exist_ok=True)
    study, plots = outcome.study, []
    if outcome.result is None:
        return
    if study.plot is not None:
        plots.append(f"{study.key}.svg")
        plot_sweep(outcome.result, study.plot, pictures / plots[0], title=study.title)
    for file in study.files:
        if (folder / file).is_file():
            plots.append(f"{study.key}-{file}" if len(study.files) > 1 else f"{study.key}{Path(file).suffix}")
            shutil.copy(folder / file, pictures / plots[-1])
    outcome.plots = tuple(f"benchmarks/{plot_name}" for plot_name in plots)


def plot_sweep(result: Result, parameter: str, path: Path, *, title: str) -> None:
    """Draw samples/s of the loader and of decoding alone over a parameter, with a bar for the range of the repeats."""
    points = [point for point in result["points"] if point["median"] is not None]
    positions = list(range(len(points)))
    figure, axes = new_figure(width=6, height=3.6)
    series = {"samples_per_s": "the loader", "limit_samples_per_s": "decoding alone"}
    for color, (key, series_name) in zip(colors(2), series.items(), strict=True):
        runs = [[run[key] for run in point["repeats"] if run[key] is not None] for point in points]
        if not all(runs):
            continue
        middle = [point["median"][key] for point in points]
        low = [level - min(values) for level, values in zip(middle, runs, strict=True)]
        high = [max(values) - level for level, values in zip(middle, runs, strict=True)]
        axes.errorbar(positions, middle, [low, high], label=series_name, color=color, marker="o", capsize=4)
    axes.set_xticks(positions, [str(point["point"][parameter]) for point in points])
    axes.set(xlabel=parameter.replace("_", " "), ylabel="pairs/s", title=title)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")
    save_figure(figure, path, png=False)


_PLACES = ("root", "small_root", "windows_root", "frames_root", "source")
_COMMAND, _RESULT = "command.json", "result.json"
_KEYS = tuple(study.key for study in STUDIES)
_MINUTES = sum(study.minutes for study in STUDIES)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Output):
    """Options of the command."""

    root: str = option("build/demo/oxe", str, "converted root")
    small_root: str = option("build/demo/oxe128", str, "the same at 128x128")
    windows_root: str = option("build/demo/windows", str, "bridge in the layout frames")
    frames_root: str = option("build/demo/frames", str, "all datasets in the layout frames, all cameras")
    source: str = option("build/demo/source", str, "RLDS source of both")
    work: Path = option(Path("build/bench"), Path, "folder for results")
    page: Path = option(Path("docs/benchmarks.md"), Path, "page to write")
    full: bool = option(False, bool, f"more repeats: hours instead of {_MINUTES:.0f} minutes")
    only: tuple[str, ...] = option(_KEYS, several(one_of(_KEYS, "study")), "studies; keep others", metavar="A,B")
    fresh: bool = option(False, bool, "repeat studies that have a result")
    list: bool = option(False, bool, "print the commands and exit")


def run_study(study: Study, command: list[str], folder: Path, *, fresh: bool) -> Outcome:
    """Run a study, or take its earlier result."""
    asked = {"module": study.module, "arguments": command}
    outcome = Outcome(study, command)
    kept = _read(folder / _COMMAND)
    outcome.kept = not fresh and {key: kept.get(key) for key in asked} == asked and (folder / _RESULT).is_file()
    if not outcome.kept:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with start(*command, "--out", str(folder), "--json", module=study.module) as running:
            try:
                done = running.wait(None)
            finally:
                running.end()
        (folder / "stderr").write_text(done.err)
        (folder / _RESULT).write_text(done.out)
        if not _read(folder / _RESULT):
            (folder / _RESULT).unlink()
            error_lines = done.err.strip().splitlines()
            last_line = error_lines[-1] if error_lines else f"ended with exit code {done.code}"
            outcome.error = last_line.removeprefix("error: ")
            return outcome
        write_atomically(folder / _COMMAND, json.dumps({**asked, "date": time.strftime("%Y-%m-%d")}))
    outcome.result = _read(folder / _RESULT)
    outcome.date = _read(folder / _COMMAND)["date"]
    return outcome


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _work(options: ReportOptions) -> Iterator[dict[str, Any]]:
    roots = {root_name: getattr(options, root_name) for root_name in _PLACES}
    commands = {study.key: study.command(roots, full=options.full) for study in STUDIES}
    outcomes: list[Outcome] = []
    for number, study in enumerate(() if options.list else STUDIES, 1):
        folder, asked = options.work / study.key, commands[study.key]
        if study.key not in options.only:
            if not (folder / _RESULT).is_file():
                continue
            asked = _read(folder / _COMMAND).get("arguments", asked)
        tell(f"{number}/{len(STUDIES)} {study.title}, about {study.minutes:g} min")
        outcome = run_study(study, asked, folder, fresh=options.fresh and study.key in options.only)
        add_plots(outcome, folder, options.page)
        outcomes.append(outcome)
        if outcome.error is not None:
            print(f"error: {study.key}: {outcome.error}", file=sys.stderr)
        options.page.parent.mkdir(parents=True, exist_ok=True)
        before = options.page.read_text() if options.page.is_file() else ""
        write_atomically(options.page, format_page(outcomes, before))
    yield {
        "page": None if options.list else str(options.page),
        "commands": [shlex.join(["python", "-m", study.module, *commands[study.key]]) for study in STUDIES],
        "studies": [
            {"key": outcome.study.key, **{name: getattr(outcome, name) for name in ("date", "kept", "error")}}
            for outcome in outcomes
        ],
    }


def _show(result: Result) -> str:
    if result["page"] is None:
        return "\n".join(result["commands"])
    kept = sum(study["kept"] for study in result["studies"])
    kept_note = f", {kept} of them with earlier results, perhaps of other code (--fresh repeats them)" if kept else ""
    return f"{result['page']}: {len(result['studies'])} studies{kept_note}"


COMMAND = Command(
    name="report",
    about="Run all studies and write the page of benchmarks.",
    options=ReportOptions,
    work=_work,
    show=_show,
    failed=lambda result: any(study["error"] for study in result["studies"]),
    interrupted="interrupted; run the same command again to continue",
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
