"""`pairstream view` finds an episode by its number or by a row of a run, and says plainly what it cannot do."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stream import Vector, make_loader

pytest.importorskip("rerun", reason="needs the extra view")
from pairstream.view.command import main
from pairstream.view.window import window_of
from tests.fixtures.command import flip
from tests.pairstream.view.recorded import read_recording

View = Callable[..., tuple[int, str, str]]


@pytest.fixture
def view(capsys: pytest.CaptureFixture[str]) -> View:
    """Run the command; return exit code, output and error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as done:
            code = int(done.code or 0)
        return code, *capsys.readouterr()

    return run


def test_an_episode_is_saved(oxe_root: Path, tmp_path: Path, view: View) -> None:
    code, out, err = view(oxe_root, "bridge", 1, "--split", "test", "--save", tmp_path / "e.rrd")
    assert (code, err) == (0, "")
    assert out.startswith("bridge test 1: ")
    assert "/cameras/image" in read_recording(tmp_path / "e.rrd")


def test_the_episode_of_a_row_has_its_window_marked(oxe_root: Path, tmp_path: Path, view: View) -> None:
    loader = make_loader(oxe_root, ["bridge", "rt1"], batch_size=4, seed=3)
    loader.save(tmp_path / "loader.json")
    ref = loader.describe(5)[2]
    options = ("--loader", tmp_path / "loader.json", "--step", 5, "--row", 2)
    code, out, _ = view(*options, "--save", tmp_path / "e.rrd")
    assert code == 0
    assert out.startswith(f"{ref.dataset} train {ref.episode}: ")
    window = read_recording(tmp_path / "e.rrd")["/texts/window"]
    assert window["step"][0] == ref.step
    ends = [*window["step"][1:], loader.episode(ref.dataset, ref.episode).table.num_rows]
    assert ends[0] == ref.step + ref.offset + 1


def test_a_window_is_that_of_frames_and_actions(oxe_root: Path) -> None:
    windows = ((Vector(9, start=-2), (-2, 7)), (Vector(2), (0, 4)), (Vector(between="frames"), (0, 4)), (None, (0, 4)))
    for action, expected in windows:
        loader = make_loader(oxe_root, "rt1", batch_size=1, action=action)
        ref = next(ref for step in range(30) for ref in loader.describe(step) if ref.step >= 2)
        assert window_of(ref, loader.data) == (ref.step + expected[0], ref.step + expected[1])


def test_wrong_names_and_numbers_are_one_sentence(
    oxe_root: Path, tmp_path: Path, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    make_loader(oxe_root, "bridge", batch_size=4).save(tmp_path / "loader.json")
    shutil.copytree(oxe_root / "rt1", tmp_path / "other" / "rt1")
    run, save = ("--loader", tmp_path / "loader.json", "--step", 5), ("--save", tmp_path / "e.rrd")
    refused: list[tuple[tuple[object, ...], str]] = [
        ((oxe_root, "brigde", 0), "did you mean 'bridge'?"),
        ((oxe_root, "bridge", 99, *save), "episode 99 of "),
        ((oxe_root, "bridge", "x"), "found 'x'"),
        ((oxe_root, "bridge", 0, "--split", "tets"), "no split 'tets'; give --split test or train"),
        ((*run, "--row", 4, *save), "has 4 rows"),
        (run[:2], "--loader needs --step"),
        ((oxe_root,), "give ROOT DATASET EPISODE"),
        ((oxe_root, "bridge", 0, "--row", 0), "give ROOT DATASET EPISODE"),
        ((*run, "--root", tmp_path / "other"), "no dataset 'bridge'"),
        ((oxe_root, "bridge", 0, "--save", tmp_path / "no" / "e.rrd"), "its folder does not exist"),
        ((oxe_root, "bridge", 0), "give --save FILE.rrd"),
    ]
    for arguments, message in refused:
        code, out, err = view(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_without_rerun_it_names_the_extra(oxe_root: Path, view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    monkeypatch.delitem(sys.modules, "pairstream.view.recording", raising=False)
    code, _, err = view(oxe_root, "bridge", 0)
    assert code == 2 and err.startswith("error: pairstream view needs rerun, which is not installed; install")


def test_a_damaged_frame_is_left_out_and_named(frames_root: Path, tmp_path: Path, view: View) -> None:
    root = tmp_path / "root"
    shutil.copytree(frames_root / "bridge", root / "bridge")
    shard = next(root.glob("bridge/*/train/*-00000-of-*.arrayrecord"))
    flip(shard, shard.stat().st_size // 4)
    results = [view(root, "bridge", episode, "--save", tmp_path / "e.rrd") for episode in range(2)]
    assert [code for code, _, _ in results] == [0, 0]
    assert sum(out.count("left out: dataset bridge, split train, shard ") for _, out, _ in results) == 1
