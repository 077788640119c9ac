"""The benchmark of conversion, run tiny: its figures mean nothing here, but they are all there and fit together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.convert.command import main, set_up_opencv, transcode
from bench.convert.source import (
    CASES,
    OFFSET,
    Case,
    choose_size,
    draw_episode,
    make_source,
    read_episodes,
)
from bench.synthetic import VERSION
from convert.registry.registry import load_registry
from convert.shard.images import FramePolicy, convert_frame
from tests.bench.conftest import Refused

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[3]
STEPS = 8


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that ``--keep`` names."""
    return tmp_path_factory.mktemp("bench") / "kept"


@pytest.fixture(scope="module")
def printed(kept: Path) -> dict[str, Any]:
    """What a tiny run prints with ``--json``."""
    command = [sys.executable, "-m", "bench.convert", "--json", "--cases", "png", "--pairs", "6"]
    command += ["--steps", str(STEPS), "--repeat", "1", "--keep", str(kept)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_parameters_and_machine_are_part_of_the_output(printed: dict[str, Any]) -> None:
    assert printed["parameters"] == {
        "num_workers": 2,
        "repeat": 1,
        "cases": ["png"],
        "pairs": 6,
        "steps": STEPS,
        "offset": 5,
        "image_size": 256,
        "quality": 95,
    }
    machine = printed["machine"]
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 2**28
    assert machine["versions"]["apache-beam"]


def test_all_pairs_of_the_source_were_converted(printed: dict[str, Any]) -> None:
    (case,) = printed["cases"]
    assert case["pairs"] == 2 * (STEPS - 5)
    assert case["frames_converted"] == 12
    (run,) = case["runs"]
    assert run["ours"]["result"]["pairs"] == case["pairs"]
    assert run["ours"]["result"]["left_out"] == {}
    assert run["bare"]["frames"] == case["frames_converted"]


def test_the_source_is_as_large_as_real_png(printed: dict[str, Any]) -> None:
    (case,) = printed["cases"]
    raw = 480 * 640 * 3
    assert 0.35 * raw < case["source"]["bytes_per_step"] < 0.65 * raw


def test_start_up_steady_time_and_end_make_up_the_wall_time(printed: dict[str, Any]) -> None:
    ours = printed["cases"][0]["runs"][0]["ours"]
    parts = [ours[key] for key in ("startup_seconds", "steady_seconds", "end_seconds")]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(ours["wall_seconds"])


def test_rates_and_ratios_follow_from_the_raw_figures(printed: dict[str, Any]) -> None:
    (case,) = printed["cases"]
    (run,) = case["runs"]
    assert case["ours"]["pairs_per_s"] == pytest.approx(case["pairs"] / run["ours"]["steady_seconds"])
    assert case["bare"]["pairs_per_s"] == pytest.approx(case["pairs"] / run["bare"]["seconds"])
    assert case["ratio"] == pytest.approx(run["bare"]["seconds"] / run["ours"]["steady_seconds"])
    assert case["ratio_min"] == case["ratio"] == case["ratio_max"]
    assert case["ours"]["spread"] == case["bare"]["spread"] == 0
    assert case["ours"]["mb_per_s"] == pytest.approx(case["source"]["bytes"] / 1e6 / run["ours"]["steady_seconds"])
    assert case["ours"]["end_to_end_pairs_per_s"] < case["ours"]["pairs_per_s"]


def test_each_worker_is_seen_with_its_shards_and_memory(printed: dict[str, Any]) -> None:
    processes = printed["cases"][0]["runs"][0]["ours"]["processes"]
    workers = [use for use in processes if use["role"] == "worker"]
    # Workers claim their shards, so one of them may be quick enough to have both.
    assert 1 <= len(workers) <= 2
    shards = sorted(shard for use in workers for shard in use["shards"])
    assert shards == ["train-00000-of-00002", "train-00001-of-00002"]
    assert [use["role"] for use in processes].count("parent") == 1
    assert all(2**25 < use["rss"] < 2**31 for use in processes)
    assert all(use["pss"] is None or 0 < use["pss"] <= use["rss"] for use in processes)


def test_kept_source_and_output_can_be_looked_at(printed: dict[str, Any], kept: Path) -> None:
    assert (kept / "source" / "bench_png" / VERSION / "dataset_info.json").is_file()
    assert (kept / "output" / "png-0" / "bench_png" / VERSION / "dataset.json").is_file()


def test_a_folder_with_files_is_not_taken_for_keep(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    code, line = refused(main, ["--keep", str(tmp_path)])
    assert code == 2
    assert "is not empty" in line


def test_an_unknown_case_is_answered_with_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--cases", "png,jpg"])
    assert "no case 'jpg'; did you mean 'jpeg'" in capsys.readouterr().err


def test_episodes_too_short_for_a_pair_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--steps", "5"])
    assert "expected a whole number of at least 6" in capsys.readouterr().err


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_the_bare_work_makes_the_frames_that_the_converter_stores(case: Case) -> None:
    (frame,) = draw_episode(0, case=case, steps=1)
    set_up_opencv()
    assert transcode(frame, case) == convert_frame(frame, FramePolicy(), channels="rgb").data


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_sources_are_read_back_as_they_were_drawn(case: Case, tmp_path: Path) -> None:
    source = make_source(case, pairs=2, steps=6, root=tmp_path, num_workers=1)
    drawn = [draw_episode(number, case=case, steps=6) for number in range(2)]
    assert read_episodes(source.files, case) == drawn


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_the_registry_accepts_the_description_of_a_source(case: Case, tmp_path: Path) -> None:
    source = make_source(case, pairs=1, steps=6, root=tmp_path, num_workers=1)
    (selected,) = load_registry(config=[str(source.config)]).resolve(case.dataset)
    assert selected.spec.primary.shape == (case.height, case.width, 3)


@pytest.mark.parametrize(("pairs", "workers"), [(1, 1), (7, 2), (1000, 3), (35_200, 4)])
def test_every_worker_gets_the_same_number_of_shards(pairs: int, workers: int) -> None:
    shards, episodes = choose_size(pairs, steps=60, num_workers=workers)
    assert shards % workers == 0
    assert shards * episodes * (60 - OFFSET) >= pairs
