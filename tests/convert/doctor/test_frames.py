"""What is wrong with pictures of real converted files is found, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convert.doctor.dataset import Examined, choose_records
from convert.doctor.frames import check_shares, same_picture, swapped_colours
from convert.doctor.split import FrameFacts
from convert.findings import Notes
from convert.shard.record_file import encode_record
from stream.format.manifest import read_manifest
from stream.format.names import decode_record
from tests.fixtures.datasets.doctor_root import STEPS, Splits, diagnose, found, make_root, set_pictures
from tests.fixtures.datasets.rewritten_records import rewrite_records
from tests.fixtures.datasets.rlds_dataset import jpeg, picture

BLACK = jpeg(np.zeros((24, 32, 3), np.uint8))
GRAY = jpeg(np.full((24, 32, 3), 130, np.uint8))
PAIRS = STEPS - 2


def test_black_frames_are_counted(tmp_path: Path) -> None:
    def plant(splits: Splits) -> None:
        splits["train"][0][1]["steps"][4]["observation"]["image"] = BLACK

    diagnosis = diagnose(make_root(tmp_path, plant))
    # It is the first frame of one pair and the last of another.
    assert found(diagnosis) == {("frame_black", "train"): 2}
    assert [example.text.split(",")[0] for example in diagnosis.findings[0].examples] == ["frames of steps 4"] * 2
    assert [example.source_position for example in diagnosis.findings[0].examples] == [1, 1]


def test_constant_frames_are_counted(tmp_path: Path) -> None:
    def plant(splits: Splits) -> None:
        set_pictures(splits["train"][0][1], GRAY)

    assert found(diagnose(make_root(tmp_path, plant))) == {("frame_constant", "train"): 2 * PAIRS}


def test_half_of_the_frames_blank_is_an_error(tmp_path: Path) -> None:
    def plant(splits: Splits) -> None:
        set_pictures(splits["val"][0][1], BLACK)

    diagnosis = diagnose(make_root(tmp_path, plant))
    assert found(diagnosis) == {("frames_blank", "val"): 2 * PAIRS}
    assert diagnosis.findings[0].rule.severity == "error"


def test_a_frozen_episode_is_found_though_most_pairs_are_well(tmp_path: Path) -> None:
    def plant(splits: Splits) -> None:
        episode = splits["train"][0][2]
        set_pictures(episode, episode["steps"][0]["observation"]["image"])

    diagnosis = diagnose(make_root(tmp_path, plant))
    assert found(diagnosis) == {("frozen_episode", "train"): 1}
    assert diagnosis.datasets[0].to_json()["pairs_frozen"] == PAIRS
    assert diagnosis.findings[0].examples[0].source_position == 2


def test_many_frozen_pairs_are_found_though_no_episode_is_frozen(tmp_path: Path) -> None:
    def plant(splits: Splits) -> None:
        for shard in splits["train"]:
            for episode in shard:
                for step in episode["steps"][2:]:
                    step["observation"]["image"] = episode["steps"][2]["observation"]["image"]

    assert found(diagnose(make_root(tmp_path, plant))) == {("frozen_pairs", "train"): 6 * (PAIRS - 2)}


@pytest.mark.parametrize(("pairs", "frozen", "said"), [(100, 20, False), (100, 21, True), (7, 7, False)])
def test_more_than_a_fifth_of_enough_pairs_is_many(pairs: int, frozen: int, said: bool) -> None:
    notes = Notes()
    check_shares("train", FrameFacts(pairs=pairs, frozen=frozen), notes=notes)
    assert notes.count("frozen_pairs", "train") == (frozen if said else 0)


def test_a_damaged_frame_is_an_error(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    cut_record_short(root / "demo" / "1.0.0", record=5)
    diagnosis = diagnose(root)
    assert found(diagnosis) == {("frame_damaged", "val"): 1}
    example = diagnosis.findings[0].examples[0]
    assert (example.record, example.step) == (5, 5)


def cut_record_short(folder: Path, *, record: int) -> None:
    """Cut the last frame of a record of the split val short, with right checksums all around."""

    def cut(records: list[bytes]) -> list[bytes]:
        frames = decode_record(records[record])
        frames[-1] = frames[-1][:-100]
        return [*records[:record], encode_record(frames), *records[record + 1 :]]

    rewrite_records(folder, "val", "val-00000-of-00001", cut)


def test_a_picture_is_the_same_up_to_rounding_and_not_after_a_small_movement() -> None:
    random = np.random.default_rng(0)
    pixels = picture(random, (64, 64)) // 2 + 50
    moved = pixels.copy()
    moved[30:34, 30:34] = 255 - moved[30:34, 30:34]
    assert same_picture(pixels, pixels + random.integers(0, 5, pixels.shape, np.uint8))
    assert not same_picture(pixels, moved)
    assert not same_picture(pixels, pixels[:32])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_dataset_that_would_be_as_the_others_with_colours_exchanged_is_found(sign: int) -> None:
    usual = {name: [sign * (12.0 + number)] * 20 for number, name in enumerate("abcde")}
    assert set(swapped_colours({**usual, "swapped": [sign * -18.0] * 20})) == {"swapped"}
    assert swapped_colours({**usual, "colourful": [sign * 80.0] * 20}) == {}
    assert swapped_colours({**usual, "neutral": [0.0] * 20}) == {}
    assert swapped_colours({**usual, "small": [sign * -18.0] * 3}) == {}
    assert swapped_colours({"swapped": [sign * -18.0] * 20, **dict(list(usual.items())[:3])}) == {}


@pytest.mark.parametrize("red_first", [True, False])
def test_the_cast_of_a_dataset_is_red_minus_blue(tmp_path: Path, red_first: bool) -> None:
    pixels = picture(np.random.default_rng(0), (24, 32))
    pixels[..., 0], pixels[..., 2] = (pixels[..., 1] // 2 + 100, pixels[..., 1] // 2)
    stored = jpeg(pixels if red_first else pixels[..., ::-1])

    def plant(splits: Splits) -> None:
        for shards in splits.values():
            for shard in shards:
                for episode in shard:
                    set_pictures(episode, stored)

    (dataset,) = diagnose(make_root(tmp_path, plant), frames=16).datasets
    assert isinstance(dataset, Examined)
    assert np.median(dataset.total.casts) == pytest.approx(100 if red_first else -100, abs=8)


def test_the_pairs_that_are_looked_at_depend_on_the_seed_only(tmp_path: Path) -> None:
    manifest = read_manifest(make_root(tmp_path) / "demo" / "1.0.0")

    def chosen(seed: int) -> dict[str, list[int]]:
        return {split: rows.tolist() for split, rows in choose_records(manifest, frames=20, seed=seed).items()}

    assert chosen(0) == chosen(0) != chosen(1)
    # 36 and 12 pairs of 48, so of 10 there are 8 and 4: no split gets fewer.
    assert {split: len(rows) for split, rows in chosen(0).items()} == {"train": 8, "val": 4}
