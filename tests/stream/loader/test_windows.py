"""Windows of frames against a slow reference: loops over the episodes that TFDS decodes and the stored records."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg
from array_record.python.array_record_module import ArrayRecordReader

from stream import make_loader
from stream.base.errors import ArgumentError
from stream.batch.assemble import Assembler
from stream.format.names import HOLE, decode_record
from tests.fixtures.datasets.oxe29_sample import SELECTED
from tests.fixtures.parameters import long_but
from tests.stream.crafted_root import CraftedRoot, with_column

# With and without a wrist camera, rate and state; of several sizes.
NAMES = ("bridge", "kuka", "rt1", "taco_play", "viola")


@dataclass(frozen=True)
class SlowDataset:
    """One dataset, read row by row.

    episodes: action and state of each step, float32 [n, dims], from TFDS. jpegs: by episode, camera and step.
    """

    manifest: dict[str, Any]
    episodes: list[tuple[np.ndarray, np.ndarray]]
    jpegs: dict[tuple[int, int, int], bytes]

    @property
    def offset(self) -> int:
        return int(self.manifest["parameters"]["offset"])

    def camera(self, camera_name: str) -> int | None:
        names = self.manifest["parameters"]["cameras"]
        roles = [self.manifest["spec"]["cameras"][name]["role"] for name in names]
        numbers = [keys.index(camera_name) for keys in (names, roles) if camera_name in keys]
        return numbers[0] if numbers else None


@cache
def slow_dataset(root: Path, source: Path, name: str) -> SlowDataset:
    (folder,) = (root / name).iterdir()
    spec = SELECTED[name].spec
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    from tests.fixtures.tfds_reference import Reference

    reference = Reference(source / spec.tfds_name / spec.version)
    vectors = []
    for episode in reference.of_split("train"):
        columns = []
        for parts in (spec.action, spec.state):
            rows = [
                np.concatenate([_part(step, part) for part in parts]) if parts else np.zeros(0)
                for step in episode.steps
            ]
            columns.append(np.array(rows, np.float32))
        vectors.append((columns[0], columns[1]))
    jpegs = {}
    table = pa.ipc.open_file(folder / "train/records.arrow").read_all()
    rows = table.select(["shard", "episode", "camera", "step"]).to_pylist()
    for shard, file in enumerate(sorted((folder / "train").glob("*.arrayrecord"))):
        shard_rows = [row for row in rows if row["shard"] == shard]
        reader = ArrayRecordReader(str(file))
        for row, record in zip(shard_rows, reader.read(0, len(shard_rows)) if shard_rows else [], strict=True):
            (jpegs[row["episode"], row["camera"], row["step"]],) = decode_record(record)
        reader.close()
    return SlowDataset(json.loads((folder / "dataset.json").read_text()), vectors, jpegs)


def _part(step: dict[str, Any], part: Any) -> np.ndarray:
    flat = np.ravel(step[part.path]).astype(np.float64)
    return flat if part.select is None else flat[list(part.select)]


@pytest.fixture
def slow(frames_root: Path, oxe_root: Path) -> dict[str, SlowDataset]:
    return {name: slow_dataset(frames_root, oxe_root.parent / "source", name) for name in NAMES}


def span(frame: int | str, dataset: SlowDataset, t: int, n: int) -> tuple[int, int]:
    """The first and last step that a frame may be, before it is moved into the episode."""
    if frame == "offset":
        return t + dataset.offset, t + dataset.offset
    if frame == "last":
        return n - 1, n - 1
    if frame == "goal":
        return t + 1, max(t + 1, n - 1)
    if isinstance(frame, str) and frame.endswith("s"):
        steps = math.floor(float(frame[:-1]) * dataset.manifest["spec"]["control_frequency"] + 0.5)
        return t + steps, t + steps
    if isinstance(frame, str):
        low, high = frame.split("..")
        return t + int(low), t + int(high)
    return t + frame, t + frame


def admissible(dataset: SlowDataset, frames: tuple[int | str, ...], bounds: str) -> set[tuple[int, int]]:
    steps = set()
    for episode, (action, _) in enumerate(dataset.episodes):
        n = len(action)
        for t in range(n):
            spans = [span(frame, dataset, t, n) for frame in frames]
            if bounds == "clamp" or all(low >= 0 and high < n for low, high in spans):
                steps.add((episode, t))
    return steps


def window(values: np.ndarray, t: int, first: int, count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps t + first and on of an episode's vectors, padded to ``width`` with 0; and what is real."""
    out, real = np.zeros((count, width), np.float32), np.zeros((count, width), bool)
    for position in range(count):
        step = t + first + position
        if 0 <= step < len(values):
            out[position, : values.shape[1]] = values[step]
            real[position, : values.shape[1]] = True
    return out, real


CASES: list[dict[str, Any]] = [
    {"frames": (0, "offset")},
    {"frames": (-2, 0, 3), "cameras": "primary"},
    {"frames": (0, 0, -1), "cameras": ("primary", "wrist"), "bounds": "clamp"},
    {"frames": ("goal", 0), "bounds": "clamp", "horizon": 4, "action_from": -2},
    {"frames": ("1..3", "goal", "last"), "cameras": ("wrist", "primary"), "state_horizon": 3, "state_from": -1},
    {"frames": ("-4..4",), "bounds": "clamp", "samples_per_episode": 2},
    {"frames": (0,), "filters": [("step", ">", 2)], "horizon": 3, "split": "train[:50%]"},
    {"frames": ("last", -1), "shuffle": "none", "action_from": 2, "horizon": 2},
]


def random_case(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    choices: list[int | str] = [*range(-4, 5), "goal", "last", "offset", "0..3", "-2..1", "1..2"]
    case: dict[str, Any] = {
        "frames": tuple(choices[i] for i in rng.integers(len(choices), size=rng.integers(1, 5))),
        "bounds": ("inside", "clamp")[rng.integers(2)],
        "cameras": ("primary", ("primary",), ("primary", "wrist"), ("wrist", "primary"))[rng.integers(4)],
        "horizon": int(rng.integers(1, 6)),
        "action_from": int(rng.integers(-3, 4)),
        "state_horizon": int(rng.integers(1, 4)),
        "state_from": int(rng.integers(-3, 4)),
        "split": ("train", "train[:50%]", "train[50%:]")[rng.integers(3)],
        "samples_per_episode": int(rng.integers(3)),
    }
    if rng.integers(2):
        case["filters"] = [("step", ">=", int(rng.integers(4)))]
    return case


@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        *map(random_case, range(6)),
        *(pytest.param(random_case(seed), marks=pytest.mark.long) for seed in range(6, 60)),
    ],
    ids=str,
)
def test_a_batch_is_what_loops_over_episodes_give(
    case: dict[str, Any], slow: dict[str, SlowDataset], frames_root: Path
) -> None:
    loader = make_loader(frames_root, dict.fromkeys(NAMES, 1), batch_size=32, seed=5, **case)
    cameras = case.get("cameras", "primary")
    listed = [cameras] if isinstance(cameras, str) else list(cameras)
    for step in (0, 1, 1000):
        batch = loader.batch_at(step)
        for row in range(32):
            dataset = slow[loader.dataset_names[batch["dataset"][row]]]
            check_row({key: value[row] for key, value in batch.items()}, dataset, case, listed)


def check_row(row: dict[str, Any], dataset: SlowDataset, case: dict[str, Any], cameras: list[str]) -> None:
    frames, bounds = case["frames"], case.get("bounds", "inside")
    t, episode = int(row["step"]), int(row["episode"])
    action, state = dataset.episodes[episode]
    n = len(action)
    assert (episode, t) in admissible(dataset, frames, bounds)
    for _, operator, value in case.get("filters", ()):
        assert t > value if operator == ">" else t >= value
    for position, frame in enumerate(frames):
        frame_step = int(row["frame_step"][position])
        low, high = span(frame, dataset, t, n)
        if low == high and frame != "goal":
            assert frame_step == min(max(low, 0), n - 1)
        assert 0 <= frame_step < n
        for camera in cameras:
            suffix = f"/{camera}" if not isinstance(case.get("cameras", "primary"), str) else ""
            real, pixels = bool(row[f"frames_mask{suffix}"][position]), row[f"frames{suffix}"][position]
            number = dataset.camera(camera)
            if number is None:
                assert not real
                assert not pixels.any()
                continue
            if real:
                assert low <= frame_step <= high
            else:
                assert frame_step in (0, n - 1)
                assert low < 0 or high >= n
            expected = simplejpeg.decode_jpeg(dataset.jpegs[episode, number, frame_step])
            np.testing.assert_array_equal(pixels, expected)
    count = case.get("horizon", row["action"].shape[0])
    expected_vector, mask = window(action, t, case.get("action_from", 0), count, row["action"].shape[-1])
    if "horizon" not in case:
        # Without a horizon the window ends with the pair.
        expected_vector[dataset.offset :], mask[dataset.offset :] = 0, False
    np.testing.assert_array_equal(row["action"], expected_vector)
    np.testing.assert_array_equal(row["action_mask"], mask)
    state_horizon = case.get("state_horizon", 1)
    expected_vector, mask = window(state, t, case.get("state_from", 0), state_horizon, row["state"].shape[-1])
    if state_horizon == 1:
        expected_vector, mask = expected_vector[0], mask[0]
    np.testing.assert_array_equal(row["state"], expected_vector)
    np.testing.assert_array_equal(row["state_mask"], mask)


@pytest.mark.parametrize("bounds", ["inside", "clamp"])
@pytest.mark.parametrize("frames", [(0,), (-2, 3), (0, "offset"), ("1..4", "goal"), (-1, "last")], ids=str)
@pytest.mark.parametrize("name", ["bridge", "kuka"])
def test_every_admissible_step_comes_once_an_epoch(
    name: str, frames: tuple[int | str, ...], bounds: Any, slow: dict[str, SlowDataset], frames_root: Path
) -> None:
    expected = admissible(slow[name], frames, bounds)
    loader = make_loader(frames_root, name, batch_size=len(expected), frames=frames, bounds=bounds)
    assert loader.sizes == {name: len(expected)}
    for epoch in (0, 7):
        batch = loader.batch_at(epoch)
        drawn = list(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True))
        assert len(drawn) == len(set(drawn))
        assert set(drawn) == expected


def test_random_distances_are_drawn_evenly(frames_root: Path) -> None:
    loader = make_loader(
        frames_root, "bridge", batch_size=1024, frames=("1..5", "-2..1", "1..5"), bounds="clamp", metadata="full"
    )
    # Distances that reach beyond no episode's edge from steps 2 to 4.
    batches = [loader.batch_at(step) for step in range(4)]
    inner = np.concatenate([(b["step"] >= 2) & (b["step"] <= 4) for b in batches])
    steps = np.concatenate([b["frame_step"] - b["step"][:, None] for b in batches])[inner]
    for position, values in ((0, range(1, 6)), (1, range(-2, 2))):
        counts = np.array([(steps[:, position] == value).sum() for value in values])
        expected = counts.sum() / len(counts)
        # The 99.99 % quantiles of chi-square for 4 and 3 degrees of freedom.
        assert ((counts - expected) ** 2 / expected).sum() < (23.5 if position == 0 else 21.1)
    # Two entries of the same range are drawn apart.
    assert 0.1 < (steps[:, 0] == steps[:, 2]).mean() < 0.3


def test_goals_are_drawn_evenly_from_the_rest_of_the_episode(frames_root: Path, slow: dict[str, SlowDataset]) -> None:
    loader = make_loader(frames_root, "bridge", batch_size=2048, frames=("goal",))
    batch = loader.batch_at(0)
    lengths = np.array([len(action) for action, _ in slow["bridge"].episodes])[batch["episode"]]
    remaining = lengths - 1 - batch["step"]
    positions = (batch["frame_step"][:, 0] - batch["step"] - 0.5) / remaining
    assert positions.min() > 0
    assert positions.max() < 1
    assert abs(positions.mean() - 0.5) < 0.03
    chosen = remaining == 4
    counts = np.bincount((batch["frame_step"][:, 0] - batch["step"])[chosen] - 1, minlength=4)
    expected = counts.sum() / 4
    assert ((counts - expected) ** 2 / expected).sum() < 21.1


RANDOM: dict[str, Any] = {
    "frames": ("1..3", "goal", 0),
    "cameras": ("primary", "wrist"),
    "bounds": "clamp",
    "state_horizon": 2,
}


@pytest.mark.parametrize(("ranks", "workers"), long_but([(1, 2), (2, 0)], product([1, 2, 3], [0, 2])))
def test_random_frames_are_the_same_on_any_number_of_workers_and_ranks(
    workers: int, ranks: int, frames_root: Path
) -> None:
    arguments: dict[str, Any] = {"batch_size": 12, "seed": 3, **RANDOM}
    full = make_loader(frames_root, "oxe29", **arguments)
    parts = [
        make_loader(frames_root, "oxe29", **arguments, rank=rank, world_size=ranks, num_workers=workers)
        for rank in range(ranks)
    ]
    iterators = [iter(part) for part in parts]
    for iterator in iterators:
        iterator.set_state(json.loads(json.dumps(full.state_at(2))))
    for step in range(2, 5):
        expected = full.batch_at(step)
        rank_batches = [next(iterator) for iterator in iterators]
        for key, value in expected.items():
            if key == "language":
                assert value == list(itertools.chain(*(part[key] for part in rank_batches)))
            else:
                np.testing.assert_array_equal(np.concatenate([part[key] for part in rank_batches]), value)
    for iterator in iterators:
        iterator.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"horizon": 7},
        {"action": "mean", "action_space": "oxe", "unmapped": "drop"},
        {"samples_per_episode": 1},
        {"metadata": "none"},
    ],
    ids=str,
)
def test_a_pair_from_frames_is_bitwise_the_stored_pair(
    options: dict[str, Any], oxe_root: Path, frames_root: Path
) -> None:
    pairs = make_loader(oxe_root, "oxe29", batch_size=64, seed=1, **options)
    frames = make_loader(frames_root, "oxe29", batch_size=64, seed=1, **options)
    chosen = make_loader(frames_root, "oxe29", batch_size=64, seed=1, frames=(0, "offset"), **options)
    for step in (0, 3, 10**6):
        expected, batch, more = (loader.batch_at(step) for loader in (pairs, frames, chosen))
        assert batch.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(batch[key], value, err_msg=key)
            np.testing.assert_array_equal(more[key], value, err_msg=key)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cameras": "ceiling"}, r"no dataset of the mixture stores 'ceiling'; they store .*primary.*wrist"),
    ({"frames": (0, "0.6s")}, r"seconds need a fixed rate, which these datasets do not have: \w+, \w+"),
    (
        {"frames": (0, 500)},
        r"language_table: split .* has 4 episodes, but the window takes 501 steps, and the longest episode has 14; "
        r".*bridge: .* has 10; .*; and 24 more\. Change split, window",
    ),
    ({"frames": ()}, "expected a list of 1 to 1024"),
    ({"frames": ("5..1",)}, r"expected a range A\.\.B with A <= B"),
    ({"frames": ("tomorrow",)}, "expected a number of steps"),
    ({"bounds": "reflect"}, "bounds='reflect'.*inside"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=str)
def test_a_wrong_window_is_one_clear_error(arguments: dict[str, Any], message: str, frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_loader(frames_root, "oxe29", batch_size=4, **arguments)


def test_every_frame_that_needs_the_same_hole_is_black_and_masked(frames_root: Path, tmp_path: Path) -> None:
    root = CraftedRoot(frames_root, tmp_path)
    table = root.table("records")
    sizes = np.array(table.column("num_bytes")).copy()
    missing = [3, 9]  # of the first episode, which has 10 steps
    sizes[missing] = len(HOLE)
    root.write("records", with_column(table, "num_bytes", pa.array(sizes)))
    frames: Any = [0, 1, 0, 2, "last", "0..0"]
    loader = make_loader(root.root, "bridge", batch_size=10, shuffle="none", frames=frames, bounds="clamp")
    batch = loader.batch_at(0)
    t, ends = batch["step"][:, None], batch["episode"][:, None] == 0
    expected = np.concatenate([t, t + 1, t, t + 2, 0 * t + 9, t], axis=1)
    assert ends.all()
    np.testing.assert_array_equal(batch["frames_mask"], ~np.isin(expected, missing) & (expected < 10))
    lost = np.isin(np.minimum(expected, 9), missing)
    assert lost.any() and not batch["frames"][lost].any() and batch["frames"][~lost].any(axis=(1, 2, 3)).all()


def test_the_pictures_of_a_missing_camera_are_black_in_memory_that_held_others(frames_root: Path) -> None:
    cameras = ("primary", "wrist")
    data = make_loader(frames_root, {"bridge": 1, "viola": 1}, batch_size=16, cameras=cameras).data
    rows = data.plan.rows(np.arange(16))
    assembler = Assembler(data.spec)
    out = assembler.empty(len(rows))
    for values in out.values():
        values.view(np.uint8)[...] = 255
    assembler.assemble(rows, out)
    has_wrist = rows.member == data.names.index("viola")
    assert 0 < has_wrist.sum() < 16
    np.testing.assert_array_equal(out["frames_mask/wrist"], has_wrist[:, None].repeat(2, axis=1))
    assert not out["frames/wrist"][~has_wrist].any()
    assert (out["frames/wrist"][has_wrist] != 255).any(axis=(2, 3, 4)).all()


def test_a_repeated_frame_is_that_of_its_own_camera(frames_root: Path) -> None:
    """bridge has no wrist camera, so its first camera has no frame to repeat."""
    cameras = ("wrist", "primary")
    loader = make_loader(frames_root, {"bridge": 1, "viola": 1}, batch_size=16, cameras=cameras, frames=(0, 1, 1))
    batch = loader.batch_at(0)
    for camera in cameras:
        has = batch[f"frames_mask/{camera}"].all(axis=1)
        frames = batch[f"frames/{camera}"][has]
        assert has.any() and (frames[:, 0] != frames[:, 1]).any(axis=(1, 2, 3)).all()
        np.testing.assert_array_equal(frames[:, 1], frames[:, 2])


# taco_play has 15 steps a second, bridge 5, rt1 3.
@pytest.mark.parametrize(
    ("frames", "slow"),
    [
        ((0, "0.05s"), "bridge (5.0 Hz), rt1 (3.0 Hz)"),
        ((0, "-0.1s"), "bridge (5.0 Hz), rt1 (3.0 Hz)"),
        ((0, "0.14s"), "rt1 (3.0 Hz)"),
        ((0, "0.2s", "0.4s"), "rt1 (3.0 Hz)"),
        (("0.4s", 0, "0.45s"), "bridge (5.0 Hz), rt1 (3.0 Hz)"),
        ((0, "0s", "0.4s"), None),
        ((0, 1, "0.4s", "0.4s"), None),
        (("-0.4s", "0.4s"), None),
    ],
    ids=str,
)
def test_times_that_are_one_step_name_the_datasets(
    frames: tuple[int | str, ...], slow: str | None, frames_root: Path
) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "frames": frames, "bounds": "clamp"}
    if slow is None:
        make_loader(frames_root, "bridge,rt1,taco_play", **arguments)
        return
    with pytest.raises(ArgumentError, match=rf"the same step at the rate of {re.escape(slow)}; give longer times"):
        make_loader(frames_root, "bridge,rt1,taco_play", **arguments)


@pytest.mark.parametrize("frames", [range(-1, 2), np.array([-1, 0, 1]), [np.int64(-1), np.int8(0), 1]], ids=repr)
def test_frames_may_be_a_range_or_an_array(frames: Any, frames_root: Path) -> None:
    loader = make_loader(frames_root, "bridge", batch_size=4, frames=frames)
    batch = loader.batch_at(0)
    np.testing.assert_array_equal(batch["frame_step"], batch["step"][:, None] + np.arange(-1, 2))
    assert loader.data.sample_spec.frames == json.loads(json.dumps(loader.data.sample_spec.frames)) == [-1, 0, 1]


def test_a_pairs_root_without_a_camera_names_the_layout_that_stores_several(oxe_root: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"no dataset of the mixture stores 'wrist'; .*--layout frames --cameras all"
    ):
        make_loader(oxe_root, "viola", batch_size=4, cameras="wrist")


@pytest.mark.parametrize("frames", [(0, 1), ("goal",), (-1, 0), ("0..5",)], ids=str)
def test_a_pairs_root_names_the_layout_that_holds_other_frames(frames: tuple[int | str, ...], oxe_root: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"dataset bridge: its pairs hold the frames t \+ \{0, 5\}.*--layout frames"
    ):
        make_loader(oxe_root, "bridge", batch_size=4, frames=frames)


def test_a_pairs_root_gives_one_frame_of_its_pairs(oxe_root: Path) -> None:
    two_frames, second = (
        make_loader(oxe_root, "oxe29", batch_size=16, frames=offsets) for offsets in ((0, "offset"), ("offset",))
    )
    np.testing.assert_array_equal(two_frames.batch_at(2)["frames"][:, 1:], second.batch_at(2)["frames"])
