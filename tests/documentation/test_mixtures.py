"""The mixtures of the pages: files, schedules, and LeRobot beside OXE."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from convert.reindex import main as reindex
from convert.run.command import main as convert
from stream import Select, Vector, make_loader
from tests.documentation.blocks import block_with, blocks, run_block
from tests.fixtures.command import REPOSITORY
from tests.fixtures.datasets.lerobot_dataset import DATA


def test_a_schedule(oxe_root: Path) -> None:
    code = block_with(oxe_root, "curriculum")
    loader = run_block(code, {})["loader"]
    weights = [line.split("# ")[1] for line in code.splitlines() if "weights_at" in line]
    assert [str(loader.weights_at(120_000))] == weights


def test_counts_of_what_was_left_out_and_weights_of_samples(oxe_root: Path) -> None:
    names = run_block(block_with(oxe_root, "left_out ="), {"make_loader": make_loader, "Select": Select})
    assert names["left_out"] == {"where": 4}
    loader = run_block(block_with(oxe_root, "sample_weights={"), {"make_loader": make_loader})["loader"]
    assert "weight_0" in loader.describe()["bridge"]


def test_only_successful_episodes_with_a_word_in_the_instruction(oxe_root: Path) -> None:
    loader = run_block(block_with(oxe_root, "successes ="), {})["loader"]
    counts = loader.describe()["droid"]
    assert 0 < counts["remaining_episodes"] < counts["episodes"]
    assert all("the" in instruction for instruction in loader.batch_at(0)["language"])


def test_mixture_files_of_the_page(oxe_root: Path, tmp_path: Path) -> None:
    members, schedule = blocks("docs/mixtures.md", "yaml")
    (tmp_path / "soup.yaml").write_text(members.replace("contains, drawer", "contains, e"))
    loader = make_loader(oxe_root, tmp_path / "soup.yaml", batch_size=4)
    assert loader.dataset_names == ("bridge_early", "bridge_drawers", "kuka", "rt1")
    assert loader.stats()["left_out"]["kuka"]["episodes"] > 0
    (tmp_path / "schedule.yaml").write_text(schedule)
    loader = make_loader(oxe_root, tmp_path / "schedule.yaml", batch_size=4)
    assert loader.weights_at(10**6)["rt1"] == 1


@pytest.mark.parametrize("file", sorted((REPOSITORY / "configs/mixtures").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_mixture_has_as_many_datasets_as_the_page_says(file: Path) -> None:
    (count,) = re.findall(rf"^\| `{file.stem}` \|\D*(\d+)", (REPOSITORY / "docs/mixtures.md").read_text(), re.MULTILINE)
    assert int(count) == len(yaml.safe_load(file.read_text())["members"])


@pytest.fixture
def roots(frames_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with data/oxe in the layout frames and a LeRobot dataset in data/mix."""
    arguments = ["--datasets", "lerobot:demo/v3_av1", "--source", str(DATA), "--output", str(tmp_path / "data/mix")]
    assert convert([*arguments, "--layout", "frames", "--image-size", "64", "--num-workers", "1"]) == 0
    (tmp_path / "data/oxe").symlink_to(frames_root)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_mixture_of_oxe_and_lerobot_with_a_root_each(roots: Path) -> None:
    (text,) = [text for text in blocks("docs/lerobot.md", "yaml") if "both.yaml" in text]
    (roots / "both.yaml").write_text(text.replace("lerobot_aloha_static_coffee", "demo_v3_av1"))
    names = run_block(block_with(roots, "both.yaml"), {})
    loader, batch = names["loader"], names["batch"]
    assert loader.dataset_names == ("bridge", "coffee")
    assert {name: round(share, 3) for name, share in loader.weights.items()} == {"bridge": 0.333, "coffee": 0.667}
    assert loader.action_names["coffee"] == ("x", "y", "gripper")
    assert batch["frames"].shape == (64, 1, 64, 64, 3)
    # Bridge has 8 numbers, this LeRobot dataset 3.
    sizes = np.array([8, 3])[batch["dataset"]]
    assert (batch["action_mask"][:, 0].sum(axis=1) == sizes).all()
    assert set(batch["dataset"].tolist()) == {0, 1}


def test_a_mixture_of_oxe_and_lerobot_in_one_action_space(roots: Path) -> None:
    (text,) = [text for text in blocks("docs/lerobot.md", "yaml") if "my_lab_planar_arm" in text]
    (roots / "mine.yaml").write_text(text.replace("my_lab_planar_arm", "demo_v3_av1"))
    assert reindex(["data/mix", "--config", "mine.yaml"]) == 0
    code = block_with(roots, '"planar"', my_lab_planar_arm="demo_v3_av1")
    names = run_block(code, {"make_loader": make_loader, "Vector": Vector})
    loader, batch = names["loader"], names["batch"]
    assert batch["action"].shape == (64, 16, 7)
    is_planar = batch["dataset"] == loader.dataset_names.index("planar")
    assert 0 < is_planar.sum() < 64
    for row in np.flatnonzero(is_planar).tolist():
        steps = loader.episode("planar", int(batch["episode"][row])).table
        stored, t = np.stack(steps["action"].to_numpy()), int(batch["step"][row])
        moved = np.diff(stored[:, :2], axis=0, prepend=np.nan)
        expected = np.hstack([moved, np.zeros((len(stored), 4)), stored[:, 2:].clip(0, 1)])[t : t + 16]
        # The first step has no target before it.
        real = np.isfinite(moved[t : t + 16]).all(axis=1)
        assert batch["action_mask"][row, : len(expected)].all(axis=1).tolist() == real.tolist()
        np.testing.assert_allclose(batch["action"][row, : len(expected)][real], expected[real], atol=1e-6)
        assert not batch["action_mask"][row, len(expected) :].any()
