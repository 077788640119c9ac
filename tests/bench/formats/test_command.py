"""The format study as a command: its figures mean nothing here, but they are all there and fit together."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.formats import command as formats
from bench.formats import plots as format_plots
from bench.formats import stores as format_stores
from bench.formats.command import compare_pairs, main
from bench.formats.guide import rank
from bench.formats.report import COLUMNS
from bench.formats.stores import FORMATS
from bench.formats.watch import Watch, phase, summarise_watch
from bench.measure.child import ChildFailed
from tests.bench.conftest import Refused
from tests.fixtures.command import Command, Result, run, start, wait_until

_SIZE = ("--pairs", "70", "--batch-sizes", "4", "--steps", "6", "--warmup", "2")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``--out`` names."""
    return tmp_path_factory.mktemp("formats") / "new" / "out"


@pytest.fixture(scope="module")
def printed(oxe_root: Path, out: Path) -> dict[str, Any]:
    """What a real run of one format prints with ``--json``, and nothing beside."""
    chosen = ("--formats", "ours", "--orders", "shuffled", "--workers", "0,2", "--repeat", "1")
    done = run("--root", str(oxe_root), "--out", str(out), *_SIZE, *chosen, "--json", module="bench.formats")
    assert (done.code, done.err) == (0, "")
    return dict(json.loads(done.out))


def _rows(out: Path) -> list[dict[str, str]]:
    with (out / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_point_has_its_figures(printed: dict[str, Any]) -> None:
    assert len(printed["points"]) == 2
    for point in printed["points"]:
        assert point["error"] is None
        (measured,) = point["repeats"]
        step = measured["step_ms"]
        assert 0 < step["p50"] <= step["p90"] <= step["p99"] <= step["max"]
        assert measured["samples_per_s"] == pytest.approx(4000 / step["mean"])
        assert measured["first_batch_s"] > 0
        assert measured["cpu_cores"] >= 0 and measured["machine_cpu_cores"] >= 0
        assert measured["peak_pss_bytes"] >= measured["pss_bytes"] > 2**24
        assert (measured["processes"] > 1) == (point["point"]["workers"] > 0)


def test_each_point_has_a_resource_log(printed: dict[str, Any], out: Path) -> None:
    for point in printed["points"]:
        (measured,) = point["repeats"]
        lines = [json.loads(line) for line in (out / "resources" / f"{point['name']}.jsonl").read_text().splitlines()]
        assert lines and [line["t"] for line in lines] == sorted(line["t"] for line in lines)
        assert all(line["repeat"] == 0 and line["phase"] == phase(line["t"], measured) for line in lines)
        assert max(line["rss_bytes"] for line in lines) == measured["peak_rss_bytes"]
        assert max(line["processes"] for line in lines) >= 1


def test_stores_are_checked_and_removed(printed: dict[str, Any], out: Path) -> None:
    assert all(store["checked"] for store in printed["stores"].values())
    names = sorted(path.name for path in out.iterdir())
    assert names == ["guide.html", "guide.md", "plots", "resources", "summary.csv", "sysinfo.json"]


def _measurement(name: str, batch_size: int, workers: int, nth: int) -> dict[str, Any]:
    """Made-up figures; those of ``ours`` are the best, and repeats of the same point differ by 1 %."""
    rate = (1000.0 + 100 * FORMATS.index(name) + 10 * workers + batch_size) * (1 + nth / 100)
    return {
        "samples_per_s": rate,
        "first_batch_s": 0.5,
        "step_ms": {"mean": 1.0, "p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 4.0},
        "cpu_cores": 1.0 + workers,
        "machine_cpu_cores": 1.5 + workers,
        "pss_bytes": 10**8,
        "processes": 1 + workers,
        "began": 0.0,
        "ended": 1.0,
    }


class _Ask:
    """Stands in for ``ask``: no process, made-up figures; a point may fail, and a store may give other pairs."""

    def __init__(self, *, fails: Mapping[str, Any] | None = None, damaged: str = "") -> None:
        self.fails = fails
        self.damaged = damaged
        self.asked: list[dict[str, Any]] = []

    def __call__(self, module: str, request: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        if module == "bench.formats.stores":
            folder = Path(request["store"]["folder"])
            folder.mkdir()
            (folder / "data").write_bytes(b"data")
            return {"write_s": 0.5, "files": 1, "file_bytes": 4, "disk_bytes": 4096}
        if "source" in request:
            return {"passes": [["a", "b", "c"]]}
        if check := request.get("check"):
            found = ["a", "a", "b"] if check["store"]["format"] == self.damaged else ["c", "b", "a"]
            return {"passes": [found for _ in check["readings"]]}
        measure = request["measure"]
        point = {**measure["reading"], "format": measure["store"]["format"]}
        if self.fails and self.fails.items() <= point.items():
            raise ChildFailed("was killed by SIGKILL")
        self.asked.append(point)
        return _measurement(point["format"], point["batch_size"], point["workers"], self.asked.count(point))


def _run(ask: _Ask, oxe_root: Path, out: Path, *more: str, monkeypatch: pytest.MonkeyPatch, plots: bool = False) -> int:
    monkeypatch.setattr(formats, "ask", ask)
    if not plots:
        monkeypatch.setattr(format_plots, "draw_plots", lambda result, folder: {})
    size = ("--pairs", "3", "--batch-sizes", "4,8", "--workers", "0,2", "--repeat", "2")
    return main(["--root", str(oxe_root), "--out", str(out), *size, *more])


def test_rows_are_the_points_that_were_asked_for(
    oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = _Ask()
    assert _run(ask, oxe_root, tmp_path, monkeypatch=monkeypatch) == 0
    rows = _rows(tmp_path)
    keys = ("format", "order", "batch_size", "workers")
    expected = [
        (name, order, str(batch), str(workers))
        for order in ("sequential", "shuffled")
        for batch in (4, 8)
        for workers in (0, 2)
        for name in FORMATS
    ]
    assert [tuple(row[key] for key in keys) for row in rows] == expected
    assert tuple(rows[0]) == COLUMNS
    assert [tuple(str(point[key]) for key in keys) for point in ask.asked] == expected + expected[::-1]
    first = rows[0]
    assert float(first["samples_per_s_min"]) == 1004 * 1.01 and float(first["samples_per_s_max"]) == 1004 * 1.02
    assert float(first["samples_per_s"]) == pytest.approx(1004 * 1.015)
    assert (first["repeats"], first["error"], first["gpu_percent"], first["files"]) == ("2", "", "", "1")


def test_a_failing_point_is_a_row_and_the_rest_goes_on(
    oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = _Ask(fails={"format": "lmdb", "workers": 2, "order": "shuffled"})
    assert _run(ask, oxe_root, tmp_path, monkeypatch=monkeypatch) == 0
    failed = [row for row in _rows(tmp_path) if row["error"]]
    assert [(row["format"], row["order"], row["workers"]) for row in failed] == [("lmdb", "shuffled", "2")] * 2
    assert {(row["error"], row["samples_per_s"], row["repeats"]) for row in failed} == {
        ("was killed by SIGKILL", "", "0")
    }
    assert len(ask.asked) == 2 * (48 - 2)
    assert "lmdb-shuffled-b4-w2: error: was killed by SIGKILL" in capsys.readouterr().out
    assert "## Not measured: 2 of 48" in (tmp_path / "guide.md").read_text()


def test_a_missing_library_is_a_row_that_says_how_to_install_it(
    oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(format_stores.LIBRARIES, "webdataset", ("no_such_library",))
    ask = _Ask()
    assert _run(ask, oxe_root, tmp_path, monkeypatch=monkeypatch) == 0
    told = {row["error"] for row in _rows(tmp_path) if row["format"] == "webdataset"}
    assert told == {"no_such_library is not installed: pip install -c constraints.txt no-such-library"}
    assert {point["format"] for point in ask.asked} == set(FORMATS) - {"webdataset"}


def test_a_store_that_gives_other_pairs_is_not_measured(
    oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = _Ask(damaged="tfrecord")
    assert _run(ask, oxe_root, tmp_path, monkeypatch=monkeypatch) == 0
    (told,) = {row["error"] for row in _rows(tmp_path) if row["format"] == "tfrecord"}
    assert told.endswith("one pass gives other pairs than the source: 1 missing, 1 repeated or different")
    assert {point["format"] for point in ask.asked} == set(FORMATS) - {"tfrecord"}


def test_pairs_are_compared_as_often_as_they_come() -> None:
    assert compare_pairs(["b", "a"], ["a", "b"]) is None
    assert compare_pairs(["a"], ["a", "b"]) == (
        "one pass gives other pairs than the source: 1 missing, 0 repeated or different"
    )


def test_the_guide_names_what_the_numbers_say(oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(_Ask(), oxe_root, tmp_path, monkeypatch=monkeypatch, plots=True) == 0
    guide = (tmp_path / "guide.md").read_text()
    # The best of ours: 1000 + 500 + 20 + 8, and 1 % and 2 % more.
    assert (
        "| most samples/s, shuffled | pairstream | pairstream 1,551/s (1,543/s to 1,559/s); next ArrayRecord" in guide
    )
    # The same first batch for all: no format is put before another.
    soonest = next(line for line in guide.splitlines() if "the first batch soonest" in line)
    assert soonest.count(" or ") == len(FORMATS) - 1 and "next" not in soonest
    assert "pairstream: shuffled instead of sequential, each at its best setting: no difference" in guide
    page = (tmp_path / "guide.html").read_text()
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(drawings) == 4
    # What a drawing refers to by its id must not be in another one too.
    uses = [use for drawing in drawings for use in set(re.findall(r'(?:url\(|href=")#(\w+)', drawing))]
    assert uses and len(uses) == len(set(uses))
    assert all(ElementTree.fromstring(drawing) is not None for drawing in drawings)
    assert not re.search(r"<(script|link|img)\b", page)
    for name in ("throughput_batch_size", "throughput_workers", "cpu_workers", "size"):
        assert (tmp_path / "plots" / f"{name}.svg").is_file() and (tmp_path / "plots" / f"{name}.png").is_file()


def test_overlapping_repeats_are_a_tie() -> None:
    assert rank({"a": [1.0, 3.0], "b": [2.0, 4.0], "c": [0.5, 0.9]}, most=True).tied == ["b", "a"]
    assert rank({"a": [1.0, 3.0], "b": [2.0, 4.0], "c": [0.5, 0.9]}, most=False).tied == ["c"]
    assert rank({"a": [], "b": [2.0]}, most=True).names == ["b"]


def test_the_stores_are_kept_if_that_is_wanted(oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = ("--work", str(tmp_path / "work"), "--keep", "--formats", "ours,lmdb")
    assert _run(_Ask(), oxe_root, tmp_path / "out", *work, monkeypatch=monkeypatch) == 0
    (kept,) = (tmp_path / "work").iterdir()
    assert sorted(path.name for path in kept.iterdir()) == ["lmdb", "ours"]


def test_a_full_disk_is_one_line_before_anything_is_written(
    oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    ask = _Ask()
    assert _run(ask, oxe_root, tmp_path, monkeypatch=monkeypatch) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "1.0 kB free" in line and "--work" in line
    assert ask.asked == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--formats", "lmdb,webdatset"), "no format 'webdatset'; did you mean 'webdataset'?"),
        (("--orders", "random"), "no order 'random'; orders there: sequential, shuffled"),
        (("--batch-sizes", "16,0"), "argument --batch-sizes: found '0', expected a whole number of at least 1"),
        (("--workers", "two"), "argument --workers: found 'two', expected a whole number of at least 0"),
        (("--mixture", "kuku"), "no mixture or dataset 'kuku'; did you mean 'kuka'"),
        (("--pairs", "999999"), "--pairs 999999: oxe29 in"),
        (("--images", "/no/such/folder"), "not allowed with argument --root"),
    ],
)
def test_what_cannot_be_is_one_line(
    more: tuple[str, ...], told: str, oxe_root: Path, tmp_path: Path, refused: Refused
) -> None:
    code, line = refused(main, ["--root", str(oxe_root), "--out", str(tmp_path / "out"), *more])
    assert code == 2
    assert told in line
    assert not (tmp_path / "out").exists()


def test_a_watch_counts_what_runs_below_it() -> None:
    import subprocess
    import sys

    with Watch(0.05) as watch:
        # Tests before may have left a process of a library, such as a resource tracker.
        assert wait_until(lambda: bool(watch.samples), seconds=30)
        before = max(sample["processes"] for sample in watch.samples)
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            assert wait_until(lambda: any(sample["processes"] == before + 1 for sample in watch.samples), seconds=30)
            process.kill()
    assert max(sample["rss_bytes"] for sample in watch.samples) > 0
    measured = {"began": 0.0, "ended": 1e18, "pss_bytes": 10**12}
    assert summarise_watch(watch.samples, measured)["peak_pss_bytes"] == 10**12


def test_the_gpu_counts_only_while_it_was_measured() -> None:
    uses = [(0.0, [90.0]), (1.5, [10.0, 30.0]), (1.6, None), (3.0, [90.0])]
    samples = [{"t": t, "gpu_percent": use, "pss_bytes": None, "rss_bytes": 5} for t, use in uses]
    found = summarise_watch(samples, {"began": 1.0, "ended": 2.0, "pss_bytes": None})
    assert found == {"peak_pss_bytes": None, "peak_rss_bytes": 5, "gpu_percent": 20.0}


@pytest.mark.parametrize(
    ("number", "result"), [(signal.SIGINT, Result(130, "", "interrupted\n")), (signal.SIGTERM, Result(143, "", ""))]
)
def test_nothing_is_left_when_it_is_ended(number: int, result: Result, oxe_root: Path, tmp_path: Path) -> None:
    endless = ("--formats", "ours", "--orders", "shuffled", "--workers", "2", "--steps", "100000000", "--no-check")
    arguments = ("--root", str(oxe_root), "--out", str(tmp_path), "--pairs", "70", *endless)

    def working(command: Command) -> bool:
        return any("stream.worker" in " ".join(process.cmdline()) for process in command.processes())

    with start(*arguments, module="bench.formats") as command:
        assert wait_until(lambda: working(command), seconds=60, poll=0.2)
        command.signal(number)
        assert command.wait() == result
        assert command.processes() == []
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "resources"]
