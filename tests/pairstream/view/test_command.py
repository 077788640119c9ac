"""`pairstream view` finds an episode by its number or by a row of a run, and says plainly what it cannot do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stream import make_loader

pytest.importorskip("rerun", reason="needs the extra view")
from pairstream.view.command import main
from pairstream.view.window import window_of
from tests.pairstream.view.recorded import read_recording


def view(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as done:
        code = int(done.code or 0)
    return code, *capsys.readouterr()


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    code, out, err = view(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


def test_an_episode_is_saved(oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = view(capsys, oxe_root, "bridge", 1, "--split", "test", "--save", tmp_path / "e.rrd")
    assert (code, err) == (0, "")
    assert out.startswith("bridge test 1: ")
    assert "/cameras/image" in read_recording(tmp_path / "e.rrd")


def test_the_episode_of_a_row_has_its_window_marked(
    oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = make_loader(oxe_root, ["bridge", "rt1"], batch_size=4, seed=3)
    loader.save(tmp_path / "loader.json")
    ref = loader.describe(5)[2]
    options = ("--loader", tmp_path / "loader.json", "--step", 5, "--row", 2)
    code, out, _ = view(capsys, *options, "--save", tmp_path / "e.rrd")
    assert code == 0
    assert out.startswith(f"{ref.dataset} train {ref.episode}: ")
    window = read_recording(tmp_path / "e.rrd")["/texts/window"]
    assert window["step"][0] == ref.step
    ends = [*window["step"][1:], loader.episode(ref.dataset, ref.episode).table.num_rows]
    assert ends[0] == ref.step + ref.offset + 1


def test_a_window_is_that_of_frames_and_actions(oxe_root: Path) -> None:
    for options, expected in (({"horizon": 9, "action_from": -2}, (-2, 7)), ({"horizon": 2}, (0, 4))):
        loader = make_loader(oxe_root, "rt1", batch_size=1, **options)  # type: ignore[arg-type]
        ref = next(ref for step in range(30) for ref in loader.describe(step) if ref.step >= 2)
        assert window_of(ref, loader.data) == (ref.step + expected[0], ref.step + expected[1])


def test_wrong_names_and_numbers_are_one_sentence(
    oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_loader(oxe_root, "bridge", batch_size=4).save(tmp_path / "loader.json")
    run = ("--loader", tmp_path / "loader.json", "--step", 5)
    assert "did you mean 'bridge'?" in refused(capsys, oxe_root, "brigde", 0)
    assert "episode 99 of " in refused(capsys, oxe_root, "bridge", 99, "--save", tmp_path / "e.rrd")
    assert "found 'x'" in refused(capsys, oxe_root, "bridge", "x")
    assert "no split 'tets'; give --split test or train" in refused(capsys, oxe_root, "bridge", 0, "--split", "tets")
    assert "has 4 rows" in refused(capsys, *run, "--row", 4, "--save", tmp_path / "e.rrd")
    assert "--loader needs --step" in refused(capsys, *run[:2])
    assert "give ROOT DATASET EPISODE" in refused(capsys, oxe_root)
    assert "give ROOT DATASET EPISODE" in refused(capsys, oxe_root, "bridge", 0, "--row", 0)
    other_root = tmp_path / "other"
    shutil.copytree(oxe_root / "rt1", other_root / "rt1")
    assert "no dataset 'bridge'" in refused(capsys, *run, "--root", other_root)
    assert "its folder does not exist" in refused(capsys, oxe_root, "bridge", 0, "--save", tmp_path / "no" / "e.rrd")


def test_without_a_display_it_names_the_ways_to_look(
    oxe_root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert "give --save FILE.rrd" in refused(capsys, oxe_root, "bridge", 0)


def test_a_damaged_frame_is_left_out_and_named(
    frames_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    shutil.copytree(frames_root / "bridge", root / "bridge")
    shard = next(root.glob("bridge/*/train/*-00000-of-*.arrayrecord"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 4] ^= 0xFF
    shard.write_bytes(content)
    results = [view(capsys, root, "bridge", episode, "--save", tmp_path / "e.rrd") for episode in range(2)]
    assert [code for code, _, _ in results] == [0, 0]
    assert sum(out.count("left out: dataset bridge, split train, shard ") for _, out, _ in results) == 1
