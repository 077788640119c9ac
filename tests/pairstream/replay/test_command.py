"""`pairstream replay` shows a step as it was in training, and says plainly what it cannot do."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from pairstream.replay.command import main, make_table
from stream import Loader, digest, load_loader, make_loader
from stream.order.reference import SampleRef
from tests.fixtures.command import REPOSITORY, TIMEOUT, run, start
from tests.pairstream.replay.test_batch_html import refs_of

MIXTURE = {"bridge": 2, "language_table": 1, "tidybot": 1}
SEED = 5
HEAD = ["row", "dataset", "source", "file", "episode", "steps", "language", "shard", "record", "sample", "epoch"]


@pytest.fixture
def saved(oxe_root: Path, tmp_path: Path) -> Path:
    """Return the loader.json of a run."""
    return save(oxe_root, tmp_path / "run" / "loader.json")


def save(root: Path, path: Path, **arguments: Any) -> Path:
    loader_of(root, **arguments).save(path)
    return path


def loader_of(root: Path, **arguments: Any) -> Loader:
    return make_loader(root, MIXTURE, **{"batch_size": 8, "seed": SEED, **arguments})


@pytest.fixture
def damaged(oxe_root: Path, tmp_path: Path) -> Path:
    """Return a root in which no record of one shard of bridge is readable."""
    root = tmp_path / "damaged"
    for name in MIXTURE:
        shutil.copytree(oxe_root / name, root / name)
    shard = next(root.glob("bridge/*/train/*-00000-of-*.arrayrecord"))
    shard.write_bytes(b"\0" * shard.stat().st_size)
    return root


Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """Run the command in this process, which has to succeed, and return its output."""

    def run_here(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run_here


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Shown:
    """Run the command in this process, which has to fail, and return the one line of its error."""

    def run_here(*arguments: object, code: int = 2) -> str:
        try:
            exit_code = main([str(argument) for argument in arguments])
        except SystemExit as done:
            exit_code = int(done.code or 0)
        captured = capsys.readouterr()
        assert (exit_code, captured.out, captured.err.count("\n")) == (code, "", 1)
        assert captured.err.startswith("error: ")
        return captured.err

    return run_here


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"world_size": 4, "rank": 2},
        {"num_workers": 1},
        {"action": None, "state": None, "language": None},
        {"frames": {"decode": "device"}},
    ],
)
def test_the_digest_is_that_of_the_batch_in_training(
    options: dict[str, Any], oxe_root: Path, tmp_path: Path, shown: Shown
) -> None:
    path = save(oxe_root, tmp_path / "loader.json", **options)
    iterator = iter(loader_of(oxe_root, **options))
    trained = [f"{step} {digest(next(iterator))}" for step in range(3)]
    iterator.close()
    assert shown("--loader", path, "--range", "0:3", "--digest").splitlines() == trained
    assert shown("--loader", path, "--step", 2, "--digest").splitlines() == trained[2:]
    for further in ((), ("--out", tmp_path / "pictures")):
        report = json.loads(shown("--loader", path, "--step", 2, "--digest", "--json", *further))
        assert f"{report.pop('step')} {report.pop('digest')}" == trained[2]
        assert not report
    assert [path.suffix for path in (tmp_path / "pictures").iterdir()] == [".html"]


def test_json_has_all_that_describe_says(saved: Path, tmp_path: Path, shown: Shown) -> None:
    loader = load_loader(saved)
    report = json.loads(shown("--loader", saved, "--step", 7, "--json", "--out", tmp_path / "pictures"))
    refs = [
        {"row": row, **asdict(ref), "frame_steps": list(ref.frame_steps), "replaced": False, "faults": []}
        for row, ref in enumerate(loader.describe(7))
    ]
    assert report == {
        "step": 7,
        "rank": 0,
        "world_size": 1,
        "batch_size": 8,
        "digest": digest(loader.batch_at(7)),
        "rows": refs,
        "replaced": [],
        "page": str(tmp_path / "pictures" / "step-00000007.html"),
    }


def test_the_table_has_a_line_for_each_row_and_cuts_nothing_in_a_pipe(saved: Path, shown: Shown) -> None:
    loader = load_loader(saved)
    lines = shown("--loader", saved, "--step", 7).splitlines()
    assert lines[0] == f"step 7, rank 0 of 1, 8 rows, digest {digest(loader.batch_at(7))}"
    assert lines[2].split() == HEAD
    assert len(lines) == 3 + 8
    for row, (line, ref) in enumerate(zip(lines[3:], loader.describe(7), strict=True)):
        before, _, after = line.partition(ref.language or ref.shard)
        steps = f"{ref.step}..{ref.step + ref.offset}"
        assert before.split() == [str(row), ref.dataset, ref.source_file, str(ref.episode), steps]
        assert after.split()[-3:] == [str(ref.record), str(ref.sample), str(ref.epoch)]


def test_each_rank_of_the_run_can_be_asked_for(oxe_root: Path, tmp_path: Path, shown: Shown) -> None:
    path = save(oxe_root, tmp_path / "loader.json", world_size=4, rank=3)
    all_samples = [ref.sample for ref in loader_of(oxe_root).describe(2)]

    def samples(*arguments: object) -> list[int]:
        report = json.loads(shown("--loader", path, "--step", 2, "--json", *arguments))
        return [row["sample"] for row in report["rows"]]

    assert [sample for rank in range(4) for sample in samples("--rank", rank)] == all_samples
    assert samples() == all_samples[6:]
    assert "step-00000002-rank1.html" in shown(
        "--loader", path, "--step", 2, "--rank", 1, "--out", tmp_path / "pictures"
    )
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["step-00000002-rank1.html"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"action": None, "state": None, "language": None},
        {"action": {"reduce": "mean"}},
        {"action": {"between": "frames"}},
        {"action": {"between": "frames", "reduce": "first"}},
    ],
)
def test_the_page_is_written_and_named(options: dict[str, Any], oxe_root: Path, tmp_path: Path, shown: Shown) -> None:
    path = save(oxe_root, tmp_path / "loader.json", **options)
    page = tmp_path / "deep" / "pages" / "step-00051234.html"
    out = shown("--loader", path, "--step", 51234, "--out", page.parent)
    assert out.splitlines()[-1] == f"page: {page}"
    assert page.read_text("utf-8").count("<img") == 16


def test_rows_that_were_replaced_are_marked_and_listed_with_their_error(
    damaged: Path, tmp_path: Path, shown: Shown
) -> None:
    path = save(damaged, tmp_path / "loader.json", on_error="replace")
    result = load_loader(path).rank_plan.make(0)
    samples = {error.sample for error in result.replaced}
    assert samples
    report = json.loads(shown("--loader", path, "--step", 0, "--json"))
    assert {row["sample"] for row in report["rows"] if row["replaced"]} == samples
    assert [error["sample"] for error in report["replaced"]] == [error.sample for error in result.replaced]
    assert all(error["shard"] == "train-00000-of-00002" and error["reason"] for error in report["replaced"])
    assert report["digest"] == digest(result.batch)
    lines = shown("--loader", path, "--step", 0).splitlines()
    marked = [line.split()[0] for line in lines[3 : 3 + 8] if "*" in line.split()[0]]
    assert marked == [f"{row['row']}*" for row in report["rows"] if row["replaced"]]
    assert f"row {marked[0][:-1]}: dataset bridge, split train, shard train-00000-of-00002, record" in "\n".join(lines)
    # What stands there now is what the frames are of, not what was drawn.
    assert all(row["shard"] != "train-00000-of-00002" for row in report["rows"] if row["dataset"] == "bridge")


def test_a_record_that_cannot_be_read_is_one_line_and_exit_code_1(
    damaged: Path, tmp_path: Path, refused: Shown
) -> None:
    path = save(damaged, tmp_path / "loader.json")
    assert "dataset bridge, split train, shard train-00000-of-00002, record" in refused(
        "--loader", path, "--step", 0, code=1
    )


def test_data_that_moved_are_found_with_root(oxe_root: Path, tmp_path: Path, shown: Shown, refused: Shown) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for name in MIXTURE:
        shutil.copytree(oxe_root / name, before / name)
    path = save(before, tmp_path / "loader.json")
    expected = shown("--loader", path, "--step", 3)
    before.rename(after)
    assert str(before) in refused("--loader", path, "--step", 3)
    assert shown("--loader", path, "--step", 3, "--root", after) == expected


def test_data_that_changed_are_refused_with_what_differs(saved: Path, refused: Shown) -> None:
    content = json.loads(saved.read_text())
    content["fingerprint"]["datasets"]["bridge"]["data"]["episodes"] = "0" * 16
    saved.write_text(json.dumps(content))
    assert "data of 'bridge', which were converted or labelled again: other episodes and steps" in refused(
        "--loader", saved, "--step", 3
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step", "-1"], "-1"),
        (["--step", "x"], "expected a whole number"),
        (["--step", str(10**18 - 1)], "expected 0 to"),
        (["--step", str(10**25)], "expected a whole number"),
        (["--step", "1", "--rank", "1"], "rank=1 of world_size=1"),
        (["--step", "1", "--rank", "-1"], "rank=-1"),
        (["--step", "1", "--root", "/nowhere"], "/nowhere"),
        (["--range", "0:3"], "give it with --digest"),
        (["--range", "3:3", "--digest"], "expected A:B with A < B"),
        (["--range", "3", "--digest"], "expected A:B"),
        (["--range", "0:3", "--digest", "--json"], "--range prints digests only"),
        (["--range", f"0:{10**18 - 1}", "--digest"], "expected 0 to"),
        ([], "--step"),
        (["--step", "1", "--range", "0:3"], "not allowed with"),
        (["--step", "1", "--world-size", "2"], "unrecognized arguments"),
        (["--step", "1", "--out", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_wrong_options_are_refused_in_one_line(arguments: list[str], said: str, saved: Path, refused: Shown) -> None:
    assert said in refused("--loader", saved, *arguments)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "other"}', '{"format": "stream-loader", "version": 1}'])
def test_files_that_are_no_loader_json_are_refused(content: str, tmp_path: Path, refused: Shown) -> None:
    path = tmp_path / "loader.json"
    assert str(path) in refused("--loader", path, "--step", 0)
    path.write_text(content)
    assert str(path) in refused("--loader", path, "--step", 0)


def ref_of(**fields: Any) -> SampleRef:
    long = "a_dataset_with_a_long_name_converted"
    names = {"dataset": f"{long}_externally_to_rlds", "source_file": f"{long}-train.tfrecord-00001-of-00512"}
    numbers = {"sample": 123456, "episode": 12, "step": 3, "epoch": 7, "record": 99}
    (ref,) = refs_of(1, **{**names, **numbers, "language": "move the red disc towards you, then stop", **fields})
    return ref


def lines_of(refs: list[SampleRef], replaced: set[int], *, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(make_table(refs, replaced=replaced, faults=()))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [90, 120, 160, 400])
def test_a_table_fits_the_terminal_and_keeps_the_numbers(width: int) -> None:
    chinese = "把红色的圆盘移到左边，然后停下来，再把绿色的方块推到右边"
    refs = [ref_of(), ref_of(dataset="rt1", language=chinese)]
    lines = lines_of(refs, {1}, width=width)
    assert max(map(cell_len, lines)) <= width
    first, second = (next(line for line in lines if line.startswith(row)) for row in ("0", "1*"))
    for line in (first, second):
        assert {"12", "3..8", "99", "123456", "7"} <= set(line.split())
    assert "rt1" in second
    assert (len(lines) == 3) == (width == 400)
    assert set(chinese) <= set("".join(lines))


def test_an_instruction_cannot_break_the_table_or_move_the_cursor() -> None:
    refs = [ref_of(language="one\ntwo\x1b[2Jthree [red]")]
    assert "one two\\x1b[2Jthree [red]" in lines_of(refs, set(), width=400)[1]


def test_the_command_runs_as_a_program_of_its_own(saved: Path, tmp_path: Path) -> None:
    arguments = ("--loader", str(saved), "--step", "3", "--out", str(tmp_path))
    done = run(*arguments, module="pairstream replay")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"page: {tmp_path}/step-00000003.html"


def test_a_reader_who_has_seen_enough_ends_it_quietly(saved: Path) -> None:
    arguments = ("--loader", str(saved), "--range", "0:1000000000", "--digest")
    with start(*arguments, module="pairstream replay") as command:
        assert command.process.stdout is not None and command.process.stderr is not None
        assert command.process.stdout.readline().startswith("0 ")
        command.process.stdout.close()
        assert command.process.wait(TIMEOUT) == 141
        assert command.process.stderr.read() == ""


def test_ctrl_c_removes_the_progress_from_the_terminal_and_exits_with_130(saved: Path) -> None:
    terminal, inner = pty.openpty()
    command = [sys.executable, "-m", "pairstream", "replay", "--loader", str(saved), "--range", "0:1000000000"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [*command, "--digest"], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=inner, text=True, env=environment
    ) as process:
        os.close(inner)
        try:
            assert process.stdout is not None
            seen = ""
            while "/1,000,000,000" not in seen:
                os.set_blocking(terminal, False)
                assert process.stdout.readline()
                try:
                    seen += os.read(terminal, 4096).decode()
                except BlockingIOError:
                    continue
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait(TIMEOUT) == 130
            os.set_blocking(terminal, True)
            with contextlib.suppress(OSError):  # Linux ends a terminal that nobody writes to with EIO
                while more := os.read(terminal, 4096):
                    seen += more.decode()
            progress, _, after = seen.rpartition("/1,000,000,000")
            assert progress and after.endswith("\x1b[2Kerror: interrupted\r\n"), after
        finally:
            process.kill()
            os.close(terminal)
