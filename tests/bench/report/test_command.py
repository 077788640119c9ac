"""The page of benchmarks, of real runs in tiny form and of results made by hand."""

from __future__ import annotations

import json
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench.loader.command import loader_table
from bench.report import STUDIES, Outcome, Study, add_plots, format_page, main, run_study
from tests.bench.conftest import Refused

TINY = ("--batch-size", "4", "--steps", "4", "--warmup", "1", "--no-limit", "--mixture", "bridge", "--num-workers", "0")


def _study(*more: str, **fields: Any) -> Study:
    arguments = shlex.join(("--root", "{root}", *TINY, *more))
    return Study(key="tiny", kind="loader", title="Tiny", seen="-", arguments=arguments, repeats=(2, 3), **fields)


def test_each_study_is_one_line_that_its_command_understands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--root", "R", "--source", "S", "--small-root", "T", "--windows-root", "W"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(STUDIES) == len({study.key for study in STUDIES})
    for line, study in zip(lines, STUDIES, strict=True):
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", f"bench.{study.kind}"]
        assert "{" not in line
        module = import_module(f"bench.{study.kind}{'' if '.' in study.kind else '.command'}")
        assert module.COMMAND.parse(words[3:]).repeat == study.repeats[0]


@pytest.mark.long
def test_a_study_is_run_once_and_shown_with_its_command_and_plot(oxe_root: Path, tmp_path: Path) -> None:
    study = _study("--sweep", "batch-size=2,4", plot="batch_size")
    command = study.command({"root": str(oxe_root)}, full=False)
    folder = tmp_path / "work" / "tiny"
    outcome = run_study(study, command, folder, fresh=False)
    assert outcome.result is not None and outcome.error is None
    kept = (folder / "result.json").stat().st_mtime_ns
    repeated = run_study(study, command, folder, fresh=False)
    assert (folder / "result.json").stat().st_mtime_ns == kept
    assert repeated.result == outcome.result
    assert (outcome.kept, repeated.kept) == (False, True)
    add_plots(repeated, folder, tmp_path / "docs" / "page.md")
    assert repeated.plots == ("benchmarks/tiny.svg",)
    assert "pairs/s" in (tmp_path / "docs" / "benchmarks" / "tiny.svg").read_text()
    page = format_page([repeated])
    assert f"`{shlex.join(['python', '-m', 'bench.loader', *command])}`, {repeated.date}" in page
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| batch_size=")]
    medians = [point["median"]["samples_per_s"] for point in outcome.result["points"]]
    shown = [(name.strip(), rate.strip()) for name, rate in rows]
    assert shown == [(f"batch_size={n}", f"{rate:,.0f}") for n, rate in zip((2, 4), medians, strict=True)]


@pytest.mark.long
def test_another_command_is_measured_anew_and_a_failure_is_told(oxe_root: Path, tmp_path: Path) -> None:
    study = _study()
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "command.json").write_text(json.dumps({"module": "bench.loader", "arguments": ["other"], "date": "-"}))
    (folder / "result.json").write_text("{}")
    outcome = run_study(study, study.command({"root": str(tmp_path / "nowhere")}, full=True), folder, fresh=False)
    assert outcome.result is None
    assert outcome.error is not None and "nowhere" in outcome.error
    assert f"Not measured: {outcome.error}" in format_page([outcome])


def test_a_failed_point_is_a_row() -> None:
    point: dict[str, Any] = {"name": "seed=1", "point": {"seed": 1}, "median": None, "to_first": None}
    points = [{**point, "repeats": [], "error": "no | memory"}]
    machine = {"cores": 1, "cpu": "any"}
    parameters = {"steps": 160, "batch_size": 64, "repeat": 1}
    table = loader_table({"points": points, "parameters": parameters, "machine": machine}).markdown()
    assert "| seed=1 |" in table and "seed=1 failed: no | memory" in table


def test_an_unknown_study_is_one_line(refused: Refused) -> None:
    code, line = refused(main, ["--only", "workers,formatz"])
    assert code == 2
    assert line.startswith("error: argument --only: no study 'formatz'; did you mean 'formats'?")


def test_sections_of_other_commands_and_of_studies_without_a_result_stay() -> None:
    outcome = Outcome(STUDIES[1], ["--root", "R"], error="no memory")
    other = "## On a GPU\n\nBy hand.\n\n```\n## no title\n```\n"
    studies = f"## {STUDIES[1].title}\n\nOld.\n\n## {STUDIES[0].title}\n\nKept.\n"
    before = f"# Benchmarks\n\nOld head.\n\n{other}\n{studies}"
    page = format_page([outcome], before)
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert titles == [f"## {STUDIES[0].title}", f"## {STUDIES[1].title}", "## On a GPU", "## no title"]
    assert "Not measured: no memory" in page and "Kept." in page and "By hand." in page
    assert "Old" not in page
    assert format_page([outcome], page) == page
