"""``python -m bench.report``: run all studies in turn and write ``docs/benchmarks.md``.

Each study (`studies.yaml`) is a command in a fresh process; its result stays below ``--work``. An interrupted
run continues: a study with a result of the same command is not run again without ``--fresh``. A study that fails is
noted on the page. The other studies run, and the exit code is 1.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.command import Command, Output, Result, tell
from bench.measure.options import known, option, several
from bench.measure.session import start
from bench.report.page import Outcome, add_plots, format_page
from bench.report.studies import STUDIES, Study
from stream.storage.files import write_whole

_COMMAND, _RESULT = "command.json", "result.json"
_KEYS = tuple(study.key for study in STUDIES)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Output):
    """Options of the command."""

    root: str = option("build/demo/oxe", str, "converted root")
    small_root: str = option("build/demo/oxe128", str, "the same at 128x128")
    source: str = option("build/demo/source", str, "RLDS source of both")
    work: Path = option(Path("build/bench"), Path, "folder for results")
    page: Path = option(Path("docs/benchmarks.md"), Path, "page to write")
    full: bool = option(False, bool, "more repeats: hours instead of 45 minutes")
    only: tuple[str, ...] = option(_KEYS, several(known(_KEYS, "study")), "studies; keep others", metavar="A,B")
    fresh: bool = option(False, bool, "repeat studies that have a result")
    list: bool = option(False, bool, "print the commands and exit")


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
        with start(*command, "--out", str(folder), "--json", module=study.module) as running:
            try:
                done = running.wait(None)
            finally:
                running.end()
        (folder / "stderr").write_text(done.err)
        (folder / _RESULT).write_text(done.out)
        if not _read(folder / _RESULT):
            (folder / _RESULT).unlink()
            told = done.err.strip().splitlines()
            outcome.error = told[-1].removeprefix("error: ") if told else f"ended with exit code {done.code}"
            return outcome
        write_whole(folder / _COMMAND, json.dumps({**asked, "date": time.strftime("%Y-%m-%d")}))
    outcome.result = _read(folder / _RESULT)
    outcome.date = _read(folder / _COMMAND)["date"]
    return outcome


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _work(given: ReportOptions) -> Iterator[dict[str, Any]]:
    places = {"root": given.root, "small_root": given.small_root, "source": given.source}
    commands = {study.key: study.command(places, full=given.full) for study in STUDIES}
    outcomes: list[Outcome] = []
    for number, study in enumerate(() if given.list else STUDIES, 1):
        folder, asked = given.work / study.key, commands[study.key]
        if study.key not in given.only:
            if not (folder / _RESULT).is_file():
                continue
            asked = _read(folder / _COMMAND).get("arguments", asked)
        tell(f"{number}/{len(STUDIES)} {study.title}")
        outcome = run_study(study, asked, folder, fresh=given.fresh and study.key in given.only)
        add_plots(outcome, folder, given.page)
        outcomes.append(outcome)
        if outcome.error is not None:
            print(f"error: {study.key}: {outcome.error}", file=sys.stderr)
        given.page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(given.page, format_page(outcomes))
    yield {
        "page": None if given.list else str(given.page),
        "commands": [shlex.join(["python", "-m", study.module, *commands[study.key]]) for study in STUDIES],
        "studies": [
            {"key": outcome.study.key, "date": outcome.date, "kept": outcome.kept, "error": outcome.error}
            for outcome in outcomes
        ],
    }


def _show(result: Result) -> str:
    if result["page"] is None:
        return "\n".join(result["commands"])
    kept = sum(study["kept"] for study in result["studies"])
    told = f", {kept} of them with earlier results, perhaps of other code (--fresh repeats them)" if kept else ""
    return f"{result['page']}: {len(result['studies'])} studies{told}"


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
