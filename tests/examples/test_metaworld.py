"""The proof of `examples/metaworld`: the right path to a policy, and mistakes that its simulator shows."""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from convert.run.command import main as convert
from pairstream.export.command import export
from stream import Frames, make_loader
from tests.fixtures.command import REPOSITORY

FOLDER = REPOSITORY / "examples" / "metaworld"
TASK = "button_press"
LACKING = [name for name in ("metaworld", "mujoco", "torch") if importlib.util.find_spec(name) is None]
LACKING += [] if ctypes.util.find_library("OSMesa") else ["Debian's libosmesa6"]
simulated = pytest.mark.skipif(bool(LACKING), reason=f"{', '.join(LACKING)} not installed")


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the folder by name; each is imported when it is first used."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = [path.stem for path in FOLDER.glob("*.py")]
    yield SimpleNamespace(load=importlib.import_module)
    for name in names:
        sys.modules.pop(name, None)


def _run(program: str, *arguments: object) -> str:
    command = [sys.executable, str(FOLDER / program), *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _convert(examples: Any, recordings: Path, root: Path, task: str = TASK) -> Path:
    config = root.with_suffix(".yaml")
    config.write_text(examples.load("recordings").describe([task]))
    source = ["--datasets", task, "--config", str(config), "--source", str(recordings / task)]
    assert convert([*source, "--output", str(root), "--layout", "frames", "--image-size", "native"]) == 0
    return root


def _made_up(examples: Any, recordings: Path, task: str = TASK) -> list[int]:
    """Write two files of episodes whose action at step t of episode e is 100 e + t, and return their lengths."""
    lengths, random = [12, 9, 15], np.random.default_rng(0)
    episodes = [
        [
            (
                random.integers(0, 256, (16, 16, 3), np.uint8),
                random.random(4, np.float32),
                np.full(4, 100 * number + step, np.float32),
            )
            for step in range(length)
        ]
        for number, length in enumerate(lengths)
    ]
    for number, part in enumerate((episodes[:2], episodes[2:])):
        path = recordings / task / f"{number:03d}.npz"
        examples.load("recordings").write(path, part, instruction=f"Do {task}.")
    return lengths


@pytest.mark.long
def test_a_lerobot_dataset_of_the_same_episodes_gives_the_same_batches(examples: Any, tmp_path: Path) -> None:
    _made_up(examples, tmp_path / "recordings")
    root = _convert(examples, tmp_path / "recordings", tmp_path / "root")
    export(root, tmp_path / TASK, dataset=TASK)
    options = ["--layout", "frames", "--image-size", "native", "--output", str(tmp_path / "again")]
    assert convert(["--datasets", f"lerobot:{tmp_path / TASK}", *options]) == 0
    shape: dict[str, Any] = {"batch_size": 8, "frames": Frames([0]), "action": 8}
    batch, same = (make_loader(folder, [TASK], **shape).batch_at(3) for folder in (root, tmp_path / "again"))
    for key in ("frames", "state", "action", "action_mask", "episode", "step"):
        np.testing.assert_array_equal(batch[key], same[key])
    assert batch["language"] == same["language"] == [f"Do {TASK}."] * 8


@pytest.mark.long
@pytest.mark.parametrize(("mistake", "late"), [("", 0), ("one_late", 1), ("four_late", 4)])
def test_late_actions_are_those_of_earlier_steps(examples: Any, tmp_path: Path, mistake: str, late: int) -> None:
    pytest.importorskip("torch")
    _made_up(examples, tmp_path / "recordings")
    root = _convert(examples, tmp_path / "recordings", tmp_path / "root")
    train = examples.load("train")
    options = {"seed": 0, "relative": False, "augment": False, "late": train.LATE.get(mistake, 0)}
    loader = train.open_mixture(root, [TASK], **options)
    batch = loader.batch_at(0)
    actions = loader.normalize.denormalize(batch["action"], dataset=TASK)
    expected = 100 * batch["episode"][:, None] + batch["step"][:, None] - late + np.arange(8)
    real = batch["action_mask"][:, :, 0]
    np.testing.assert_allclose(actions[:, :, 0][real], expected[real], atol=1e-3)
    lengths = np.array([12, 9, 15])[batch["episode"]][:, None]
    steps = batch["step"][:, None] - late + np.arange(8)
    np.testing.assert_array_equal(real, (steps >= 0) & (steps < lengths))


@pytest.mark.long
def test_the_other_mistakes_change_only_what_they_name(examples: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for task in (TASK, "door_open"):
        _made_up(examples, tmp_path / "recordings", task)
        _convert(examples, tmp_path / "recordings", tmp_path / "root", task)
    train = examples.load("train")
    options = {"seed": 0, "relative": False, "augment": False}
    loader = train.open_mixture(tmp_path / "root", [TASK, "door_open"], **options)
    right, colours, instructions = (
        next(train.read(loader, mistake=mistake)) for mistake in ("", "colours", "instructions")
    )
    assert torch.equal(colours[0], right[0].flip(-1)) and not torch.equal(colours[0], right[0])
    assert colours[2] == right[2]
    assert instructions[2] != right[2] and sorted(instructions[2]) == sorted(right[2])
    assert torch.equal(instructions[0], right[0])
    for wrong in (colours, instructions):
        assert all(torch.equal(wrong[part], right[part]) for part in (1, 3, 4))


def test_a_worse_path_and_a_mistake_that_goes_unnoticed_are_not_as_expected(examples: Any) -> None:
    groups = {"a": "reference", "b": "path", "c": "path", "d": "mistake", "e": "mistake", "f": "small mistake"}
    variants = {name: SimpleNamespace(group=group) for name, group in groups.items()}
    counts = {"a": 110, "b": 105, "c": 80, "d": 109, "e": 40, "f": 120}
    verdicts = examples.load("report").judge(variants, {name: (count, 120) for name, count in counts.items()})
    assert verdicts == {"a": None, "b": True, "c": False, "d": False, "e": True, "f": None}


@simulated
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_policy_presses_the_button_and_with_statistics_of_another_dataset_it_does_not(
    examples: Any, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    _run("collect.py", "--tasks", TASK, "--episodes", 40, "--out", tmp_path / "recordings")
    root = _convert(examples, tmp_path / "recordings", tmp_path / "root")
    run, wrong = tmp_path / "run", tmp_path / "wrong"
    assert "step 300: loss" in _run("train.py", "--root", root, "--tasks", TASK, "--steps", 300, "--out", run)
    _made_up(examples, tmp_path / "made_up")
    made_up = _convert(examples, tmp_path / "made_up", tmp_path / "made_up_root")
    shutil.copytree(run, wrong)
    options = {"seed": 0, "relative": False, "augment": False}
    examples.load("train").open_mixture(made_up, [TASK], **options).normalize.save(wrong / "normalize.json")
    solved = {}
    for folder in (run, wrong):
        plays = tmp_path / f"{folder.name}_plays"
        played = _run("play.py", "--run", folder, "--tasks", TASK, "--episodes", 20, "--record", plays)
        steps = json.loads(played)["steps"]
        assert len(steps) == 20
        solved[folder.name] = sum(map(bool, steps))
    assert solved["run"] >= 18
    assert solved["wrong"] <= 4
    assert len(list(examples.load("recordings").episodes(str(tmp_path / "run_plays" / TASK / "000.npz")))) == 5


@simulated
def test_a_second_simulator_in_a_process_is_refused() -> None:
    program = "from simulator import Simulator; Simulator('button_press', seed=0); Simulator('door_open', seed=0)"
    done = subprocess.run([sys.executable, "-c", program], cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "shows the pictures of the first" in done.stderr
