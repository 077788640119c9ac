"""What a sample draws: one of several cameras and texts, and geometric goals; the same for any ranks and workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stream import ArgumentError, Frames, SampleSource, load_loader, make_loader
from stream.sample.window import WindowTable, resolve_windows
from tests.stream.index_root import change_table, write_dataset

CAMERAS = {"exterior": ("primary", "exterior_image_2_left"), "wrist": "wrist"}
TEXTS = ["language_instruction", "language_instruction_2", "language_instruction_3"]


def same(first: Any, second: Any) -> bool:
    return all(np.array_equal(value, second[key]) for key, value in first.items())


def test_each_sample_shows_one_of_the_cameras_evenly_and_again_in_each_epoch(frames_root: Path) -> None:
    all_cameras = ["exterior_image_1_left", "exterior_image_2_left", "wrist"]
    drawn, both_cameras = (
        make_loader(
            frames_root, "droid", batch_size=32, frames=Frames([-1, 0], cameras=cameras, edges="repeat"), shuffle="none"
        )
        for cameras in (CAMERAS, all_cameras)
    )
    drawn_cameras: dict[tuple[int, int], set[int]] = {}
    counts: Counter[int] = Counter()
    for step in range(4 * drawn.steps_per_epoch):
        batch, all_of = drawn.batch_at(step), both_cameras.batch_at(step)
        assert np.array_equal(batch["frames/wrist"], all_of["frames/wrist"])
        for row in range(32):
            views = {number: all_of[f"frames/exterior_image_{number}_left"][row] for number in (1, 2)}
            shown = [number for number, view in views.items() if np.array_equal(batch["frames/exterior"][row], view)]
            assert len(shown) == 1 and batch["frames_mask/exterior"][row, 1]
            counts.update(shown)
            drawn_cameras.setdefault((int(batch["episode"][row]), int(batch["step"][row])), set()).update(shown)
    assert abs(counts[1] - counts[2]) < 5 * np.sqrt(sum(counts.values()))
    assert sum(len(camera_numbers) == 2 for camera_numbers in drawn_cameras.values()) > len(drawn_cameras) / 2


def test_the_draws_do_not_depend_on_ranks_workers_and_files(frames_root: Path, tmp_path: Path) -> None:
    frames = Frames([0, "goal:geometric:0.9"], cameras=CAMERAS)
    arguments: Any = {"frames": frames, "language": TEXTS, "batch_size": 12}
    full = make_loader(frames_root, "droid", seed=3, **arguments)
    full.save(tmp_path / "loader.json")
    loaded = load_loader(tmp_path / "loader.json", num_workers=1)
    assert same(full.batch_at(5), loaded.batch_at(5)) and same(full.batch_at(0), next(iter(loaded)))
    ranks = [make_loader(frames_root, "droid", seed=3, rank=rank, world_size=3, **arguments) for rank in range(3)]
    parts = [loader.batch_at(5) for loader in ranks]
    for key, value in full.batch_at(5).items():
        joined = np.concatenate([np.asarray(part[key]) for part in parts])
        assert np.array_equal(joined, value)
    assert [ref.language for ref in full.describe(5)] == full.batch_at(5)["language"]


def test_an_episode_shows_every_camera_that_samples_draw_from(frames_root: Path) -> None:
    drawn = make_loader(frames_root, "droid", frames=Frames([0], cameras=CAMERAS), batch_size=1).episode("droid", 0)
    assert list(drawn.cameras) == ["frames/exterior_image_1_left", "frames/exterior_image_2_left", "frames/wrist"]
    plain = make_loader(frames_root, "droid", frames=Frames([0], cameras=["exterior_image_2_left"]), batch_size=1)
    frames = plain.episode("droid", 0).frames
    assert np.array_equal(frames, drawn.cameras["frames/exterior_image_2_left"].frames)


def test_two_cameras_of_one_key_are_refused(frames_root: Path) -> None:
    frames = Frames(cameras={"view": "primary", "depth/view": "wrist"})
    with pytest.raises(ArgumentError, match="two of them would have the key 'frames/view'; rename one"):
        make_loader(frames_root, "droid", frames=frames, batch_size=1)


def test_a_dataset_without_the_other_cameras_shows_the_one_that_it_has(frames_root: Path) -> None:
    loader = make_loader(frames_root, "bridge,droid", frames=Frames([0], cameras=CAMERAS), batch_size=32)
    batch = loader.batch_at(0)
    assert batch["frames_mask/exterior"].all()
    assert batch["frames_mask/wrist"][:, 0].tolist() == [ref.dataset == "droid" for ref in loader.describe(0)]


@pytest.fixture
def texts_root(tmp_path: Path) -> Path:
    """A dataset with three texts a step: all, some, one and none of them empty."""
    folder = write_dataset(tmp_path, "demo", {"train": [[40, 30]]})
    texts: dict[str, list[str | None]] = {name: [] for name in ("first", "second", "third")}
    for row in range(70):
        texts["first"].append("" if row % 4 > 2 else f"a{row}")
        texts["second"].append(None if row % 4 > 1 else f"b{row}")
        texts["third"].append("" if row % 4 > 0 else f"c{row}")

    def add(table: Any) -> Any:
        for name, column in texts.items():
            table = table.append_column(name, pa.array(column, pa.large_string()))
        return table

    change_table(folder, "steps", add)
    return tmp_path


def test_a_text_is_drawn_evenly_from_those_that_are_not_empty(texts_root: Path) -> None:
    loader = make_loader(texts_root, "demo", batch_size=64, language=("first", "second", "third"))
    counts: dict[int, Counter[str]] = {}
    for step in range(40):
        batch = loader.batch_at(step)
        for row, text in enumerate(batch["language"]):
            steps_row = int(batch["step"][row] + 40 * batch["episode"][row])
            counts.setdefault(steps_row, Counter())[text[:1]] += 1
    by_kind = [sum((counter for row, counter in counts.items() if row % 4 == kind), Counter()) for kind in range(4)]
    assert [set(counter) for counter in by_kind] == [set("abc"), set("ab"), set("a"), {""}]
    for counter in by_kind[:2]:
        mean = sum(counter.values()) / len(counter)
        assert all(abs(count - mean) < 5 * np.sqrt(mean) for count in counter.values())


def test_the_seed_of_the_loader_draws_the_texts(texts_root: Path) -> None:
    arguments: Any = {"batch_size": 64, "shuffle": "none", "language": ("first", "second", "third")}
    loaders = [make_loader(texts_root, "demo", seed=seed, **arguments) for seed in (1, 1, 2)]
    first, same_seed, other_seed = (loader.batch_at(2) for loader in loaders)
    assert first["step"].tolist() == other_seed["step"].tolist()
    assert first["language"] == same_seed["language"] != other_seed["language"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"language": ["first", "fourth"]}, "language: no dataset of the mixture has 'fourth'"),
        ({"language": "reward"}, "language: 'reward' has numbers"),
        ({"language": []}, "expected a column of texts"),
        ({"frames": {"cameras": {}}}, "expected the role or name of a camera"),
        ({"frames": {"cameras": {"a": ("primary", "primary")}}}, "expected the role or name of a camera"),
        ({"frames": {"cameras": {"a": ("primary", "left")}}}, "no dataset of the mixture stores 'primary'"),
        ({"frames": ["goal:geometric:1.0"]}, "'goal:geometric:1.0'; expected a discount above 0, at most 0.9999"),
        ({"frames": ["goal:geometric:0"]}, "'goal:geometric:0'; expected a discount above 0, at most 0.9999"),
        ({"frames": ["goal:geometric:0.99999"]}, "expected a discount above 0, at most 0.9999"),
    ],
)
def test_wrong_choices_are_refused_when_the_loader_is_made(texts_root: Path, arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_loader(texts_root, "demo", batch_size=4, **arguments)


def test_a_source_without_epochs_draws_nothing(texts_root: Path) -> None:
    with pytest.raises(ArgumentError, match="SampleSource cannot draw"):
        SampleSource(texts_root, "demo", language=["first", "second"])


def goals(discount: float, *, step: int, num_steps: int, count: int = 20_000) -> np.ndarray:
    """The steps of geometric goals of some samples."""
    fields: Any = SimpleNamespace(layout="frames", offset=1, control_frequency=None)
    windows = resolve_windows([[f"goal:geometric:{discount}"]], [fields], ["demo"])
    zero = np.zeros(count, np.int64)
    steps, mask = WindowTable(windows, seed=1).steps(zero, zero + step, zero + num_steps, np.arange(count))
    assert mask.all() == (step < num_steps - 1)
    return steps[:, 0]


def test_a_small_discount_is_that_of_the_loader_after_saving(frames_root: Path, tmp_path: Path) -> None:
    arguments: Any = {"frames": [0, "goal:geometric:0.00001"], "shuffle": "none"}
    loader = make_loader(frames_root, "bridge", batch_size=64, **arguments)
    assert loader.spec.frames is not None and loader.spec.frames.steps == [0, "goal:geometric:0.00001"]
    batch = loader.batch_at(0)
    assert (batch["frame_step"][:, 1] == batch["step"] + 1).all()
    loader.save(tmp_path / "loader.json")
    assert same(load_loader(tmp_path / "loader.json").batch_at(0), batch)


@pytest.mark.parametrize("discount", [0.5, 0.9, 0.99])
def test_a_geometric_goal_is_k_steps_later_with_a_falling_probability_or_the_last_step(discount: float) -> None:
    ahead = goals(discount, step=3, num_steps=24) - 3
    shares = np.bincount(ahead, minlength=21) / len(ahead)
    expected = np.array([0, *((1 - discount) * discount ** np.arange(19)), discount**19])
    assert np.abs(shares - expected).max() < 5 / np.sqrt(len(ahead))
    assert goals(discount, step=23, num_steps=24).tolist() == [23] * 20_000
