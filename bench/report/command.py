"""``python -m bench.report``: run all studies in turn and write ``docs/benchmarks.md``.

Each study (`bench.report.studies`) is a command in a fresh process; its result stays below ``--work``. An interrupted
run continues: a study with a result of the same command is not run again without ``--fresh``. A study that fails is
noted on the page. The other studies run, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure.child import end
from bench.measure.command import run_command
from bench.measure.points import tell
from bench.report.page import Outcome, format_page
from bench.report.plots import plot_sweep
from bench.report.studies import STUDIES, Length, Study
from stream.storage.arguments import Parser
from stream.storage.files import write_whole

_COMMAND, _RESULT = "command.json", "result.json"


def run_study(study: Study, command: list[str], folder: Path, *, fresh: bool) -> Outcome:
    """Run a study, or take its earlier result.

    Raises:
        OSError: The folder cannot be written to.
    """
    asked = {"module": study.module, "arguments": command}
    outcome = Outcome(study, command)
    kept = _read(folder / _COMMAND)
    outcome.kept = not fresh and {key: kept.get(key) for key in asked} == asked and (folder / _RESULT).is_file()
    if not outcome.kept:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        out, err = folder / "stdout", folder / "stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            arguments = [sys.executable, "-m", study.module, *command, "--out", str(folder), "--json"]
            # Ctrl-C reaches this process alone, which ends the child.
            process = subprocess.Popen(arguments, stdout=stdout, stderr=stderr, process_group=0)
            try:
                process.wait()
            finally:
                end(process)
        if not _read(out):
            told = err.read_text(errors="replace").strip().splitlines()
            outcome.error = told[-1].removeprefix("error: ") if told else f"ended with exit code {process.returncode}"
            return outcome
        out.replace(folder / _RESULT)
        write_whole(folder / _COMMAND, json.dumps({**asked, "date": time.strftime("%Y-%m-%d")}))
    outcome.result = _read(folder / _RESULT)
    outcome.date = _read(folder / _COMMAND)["date"]
    return outcome


def add_plots(outcome: Outcome, folder: Path, page: Path) -> None:
    """Put the plots of a study beside the page, in ``benchmarks/``."""
    pictures = page.parent / "benchmarks"
    pictures.mkdir(parents=True, exist_ok=True)
    study, result = outcome.study, outcome.result
    if result is None:
        return
    plots = []
    if study.plot is not None:
        plots.append(f"{study.key}.svg")
        plot_sweep(result, study.plot, pictures / plots[0], title=study.title)
    for file in study.files:
        if (folder / file).is_file():
            plots.append(file if study.key == Path(file).stem else f"{study.key}-{file}")
            shutil.copy(folder / file, pictures / plots[-1])
    outcome.plots = tuple(f"benchmarks/{name}" for name in plots)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m bench.report", description="Run all studies and write the page of benchmarks.")
    parser.add_argument("--root", default="build/demo/oxe", help="converted root (default: %(default)s)")
    parser.add_argument("--small-root", default="build/demo/oxe128", help="the same at 128x128 (default: %(default)s)")
    parser.add_argument("--source", default="build/demo/source", help="RLDS source of both (default: %(default)s)")
    parser.add_argument(
        "--work", type=Path, default=Path("build/bench"), help="folder for results (default: %(default)s)"
    )
    parser.add_argument(
        "--page", type=Path, default=Path("docs/benchmarks.md"), help="page to write (default: %(default)s)"
    )
    parser.add_argument("--full", action="store_true", help="more repeats: hours instead of 45 minutes")
    parser.add_argument("--only", metavar="A,B", help=f"of {', '.join(study.key for study in STUDIES)}; keep others")
    parser.add_argument("--fresh", action="store_true", help="repeat studies that have a result")
    parser.add_argument("--list", action="store_true", help="print the commands and exit")
    options = parser.parse_args(arguments)
    known = {study.key for study in STUDIES}
    options.only = known if options.only is None else set(options.only.split(","))
    if options.only - known:
        parser.error(f"argument --only: no study {min(options.only - known)!r}; there are {', '.join(sorted(known))}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = _parse(arguments)
    told = "interrupted; run the same command again to continue"
    return run_command(lambda: _run(options), place=options.work, interrupted=told)


def _run(options: argparse.Namespace) -> int:
    places = {"root": options.root, "small_root": options.small_root, "source": options.source}
    length: Length = "full" if options.full else "short"
    commands = {study.key: study.command(places, length) for study in STUDIES}
    if options.list:
        for study in STUDIES:
            print(shlex.join(["python", "-m", study.module, *commands[study.key]]))
        return 0
    outcomes: list[Outcome] = []
    for number, study in enumerate(STUDIES, 1):
        folder = options.work / study.key
        if study.key not in options.only and not (folder / _RESULT).is_file():
            continue
        tell(f"{number}/{len(STUDIES)} {study.title}")
        asked = commands[study.key]
        if study.key not in options.only:
            asked = _read(folder / _COMMAND).get("arguments", asked)
        outcome = run_study(study, asked, folder, fresh=options.fresh and study.key in options.only)
        add_plots(outcome, folder, options.page)
        outcomes.append(outcome)
        if outcome.error is not None:
            print(f"error: {study.key}: {outcome.error}", file=sys.stderr)
        options.page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.page, format_page(outcomes))
    kept = sum(outcome.kept for outcome in outcomes)
    told = f", {kept} of them with earlier results, perhaps of other code (--fresh repeats them)" if kept else ""
    print(f"{options.page}: {len(outcomes)} studies{told}")
    return 1 if any(outcome.error for outcome in outcomes) else 0
