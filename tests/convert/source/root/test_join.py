"""Several converted datasets become one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.errors import EXIT_USAGE
from convert.journal.journal import FOLDER
from convert.source.locations import JOIN
from convert.verify.command import main as verify
from stream import add_labels, make_loader
from stream.format.manifest import read_manifest
from tests.convert.source.root.test_dataset import content, convert, from_source
from tests.fixtures.command import TIMEOUT, start, tree, wait_until
from tests.fixtures.datasets.rlds_dataset import demo_episode, write_dataset
from tests.fixtures.faults.gate import STATUSES, Gates

LENGTHS = (6, 4, 7)


def session(folder: Path, seed: int, *more: str, **fields: Any) -> str:
    """A recording session with files named as in any other, converted; returns its place."""
    episodes = [[demo_episode(length, seed=seed + number)] for number, length in enumerate(LENGTHS)]
    dataset = write_dataset(folder / f"source{seed}", splits={"train": episodes, "val": [[demo_episode(5, seed=seed)]]})
    assert from_source(dataset, folder / str(seed), *more, **fields) == 0
    return f"root:{folder / str(seed) / 'demo'}"


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("sessions")
    return [session(folder, seed, "--layout", "frames") for seed in (100, 200)]


def together(*locations: str) -> str:
    return "root:" + JOIN.join(position.removeprefix("root:") for position in locations)


def read(root: Path, samples: int, **arguments: Any) -> dict[str, Any]:
    """All samples of train, by episode and step."""
    loader = make_loader(root, "demo", split="train", batch_size=samples, num_workers=0, frames=(0,), **arguments)
    batch = loader.batch_at(0)
    order = np.lexsort((batch["step"], batch["episode"]))
    names = [row.episode_id for row in loader.describe(0)]
    return {
        "id": [names[row] for row in order],
        **{name: value[order] for name, value in batch.items() if isinstance(value, np.ndarray)},
    }


def test_two_halves_of_a_dataset_give_what_the_whole_gives(tmp_path: Path) -> None:
    episodes = [[demo_episode(6, seed=seed)] for seed in range(4)]
    dataset = write_dataset(tmp_path / "source", splits={"train": episodes})
    for name, chosen in (("whole", "train"), ("a", "train[:1]"), ("b", "train[1:]")):
        assert from_source(dataset, tmp_path / name, "--episodes", chosen) == 0
    assert convert(together(*(f"root:{tmp_path / name / 'demo'}" for name in "ab")), tmp_path / "out") == 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    complete, out = (read_manifest(tmp_path / name / "demo" / "1.0.0") for name in ("whole", "out"))
    assert out.statistics == complete.statistics


def test_two_sessions_come_one_after_the_other_with_ids_and_statistics_of_their_own(
    sessions: list[str], tmp_path: Path
) -> None:
    assert convert(together(*sessions), tmp_path) == 0
    assert verify([str(tmp_path), "--deep"]) == 0
    result = read(tmp_path, 2 * sum(LENGTHS))
    parts = [read(Path(position[5:]).parent, sum(LENGTHS)) for position in sessions]
    assert result["id"] == [*parts[0]["id"], *(f"2+{name}" for name in parts[1]["id"])]
    for name in ("frames", "action", "state", "step"):
        np.testing.assert_array_equal(result[name], np.concatenate([part[name] for part in parts]))
    statistics = read_manifest(tmp_path / "demo" / "1.0.0").statistics["train"]["state"]
    expected = np.mean([part["state"] for part in parts], axis=(0, 1))
    np.testing.assert_allclose(np.array(statistics.mean, float), expected, rtol=1e-5)


def test_labels_that_only_one_has_are_missing_in_the_other_and_a_list_names_episodes_of_both(
    sessions: list[str], tmp_path: Path
) -> None:
    labelled = tmp_path / "labelled"
    shutil.copytree(Path(sessions[1][5:]).parent, labelled)
    add_labels(labelled, "demo", {"episode": [0, 2], "grade": [1.5, 2.5]}, split="train")
    chosen = tmp_path / "chosen.json"
    chosen.write_text(json.dumps({"demo": {"leave_out": ["2+*-00001-of-00003__0", "demo-train*-00000-of-00003__0"]}}))
    position = together(sessions[0], f"root:{labelled / 'demo'}")
    assert convert(position, tmp_path / "out", "--episodes", f"train:{chosen}") == 0
    batch = read(tmp_path / "out", 24, columns=["grade"])
    assert batch["grade_mask"].tolist() == [False] * 11 + [True] * 13
    assert batch["grade"][11:].tolist() == [1.5] * 6 + [2.5] * 7


@pytest.mark.long
def test_a_join_that_is_killed_goes_on_and_ends_as_if_it_was_not(sessions: list[str], tmp_path: Path) -> None:
    options = ("--image-size", "1024", "--num-workers", "1")
    assert convert(together(*sessions), tmp_path / "whole", *options) == 0
    command = ("--datasets", together(*sessions), "--output", str(tmp_path / "out"), *options)
    journal = tmp_path / "out" / "demo" / "1.0.0" / FOLDER
    gates = Gates()
    gates.close(STATUSES, after=3)
    with start(*command, environment=gates.variables) as running:
        assert wait_until(lambda: len([*journal.glob(STATUSES)]) > 1, seconds=TIMEOUT, poll=0.005)
        running.kill()
    assert not (journal.parent / "dataset.json").exists()
    assert convert(command[1], tmp_path / "out", *options) == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


OTHER_CAMERA = {"eye": {"path": "observation/image", "role": "primary"}}


@pytest.mark.parametrize(
    ("options", "fields", "message"),
    [
        ("--layout pairs", {}, "layouts frames and pairs; give --layout"),
        ("", {"control_frequency": 7}, "control_frequency is .* in the first and 7.0 in the other"),
        ("--image-size 16", {}, "image have the sizes 256x256 and 16x16; give --image-size"),
        ("--leave-out is_last", {}, "columns: steps/is_last is there in the first and absent"),
        ("", {"cameras": OTHER_CAMERA}, "cameras: "),
    ],
    ids=["layout", "rate", "size", "columns", "cameras"],
)
def test_datasets_that_differ_are_refused_with_the_difference(
    sessions: list[str], tmp_path: Path, options: str, fields: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    second = session(tmp_path, 300, "--layout", "frames", *options.split(), **fields)
    assert convert(together(sessions[0], second), tmp_path / "out") == EXIT_USAGE
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert re.search(message, line), line
    assert not (tmp_path / "out").exists()


def test_a_label_that_means_something_else_in_the_other_is_refused(
    sessions: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for number, (position, value) in enumerate(zip(sessions, (1.5, "good"), strict=True)):
        shutil.copytree(Path(position[5:]).parent, tmp_path / str(number))
        add_labels(tmp_path / str(number), "demo", {"episode": [0], "grade": [value]}, split="train")
        paths.append(f"root:{tmp_path / str(number) / 'demo'}")
    assert convert(together(*paths), tmp_path / "out") == EXIT_USAGE
    assert "columns: steps/grade: dtype is float64 in the first and string in the other" in capsys.readouterr().err


def test_an_episode_that_both_have_is_refused(
    sessions: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(together(sessions[0], sessions[0]), tmp_path) == EXIT_USAGE
    assert "has episode demo-train.tfrecord-00000-of-00003__0 as" in capsys.readouterr().err
    assert convert(f"{sessions[0]},{sessions[1]}", tmp_path) == EXIT_USAGE
    assert "converted roots become one dataset with +root: between them" in capsys.readouterr().err
