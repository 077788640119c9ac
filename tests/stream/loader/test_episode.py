"""An episode is its rows of the index, and each of its frames once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg

from stream import Frames, Loader, Vector, make_loader
from stream.base.errors import ArgumentError, FormatError
from stream.format.manifest import encode_manifest, read_manifest
from stream.loader.episode import Episode
from tests.stream.index_root import change_table, encoded_frame, read_table, with_values, write_dataset

LENGTHS = {"train": [[5, 1, 4], [], [6, 9]], "test": [[7]]}
OFFSETS = {"arm": 2, "hand": 4}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two datasets; tests must not write to them."""
    root = tmp_path_factory.mktemp("episode")
    for name, offset in OFFSETS.items():
        write_dataset(root, name, LENGTHS, offset=offset)
    return root


def loader_of(root: Path, split: str = "train", *, names: tuple[str, ...] = ("arm", "hand")) -> Loader:
    return make_loader(root, dict.fromkeys(names, 1), split=split, batch_size=2, action=None, state=None, language=None)


def lengths(split: str) -> list[int]:
    return [steps for shard in LENGTHS[split] for steps in shard]


def frame_steps(steps: int, offset: int) -> list[int]:
    """Return the steps whose frames the pairs of an episode hold."""
    return sorted({t + distance for t in range(max(0, steps - offset)) for distance in (0, offset)})


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", OFFSETS)
def test_an_episode_is_its_steps_and_its_frames_once_each(root: Path, name: str, split: str) -> None:
    loader = loader_of(root, split)
    table = read_table(root / name / "1.0.0", "steps", split)
    for number, steps in enumerate(lengths(split)):
        episode = loader.episode(name, number)
        assert episode.table.equals(table.filter(pa.compute.equal(table["episode"], number)))
        assert episode.table["step"].to_pylist() == list(range(steps))
        assert episode.frame_steps.tolist() == frame_steps(steps, OFFSETS[name])
        assert (episode.frame_steps.dtype.str, episode.frames.dtype.str) == ("<i8", "|u1")
        assert episode.frames.shape == (len(episode.frame_steps), 16, 16, 3)
        for step, frame in zip(episode.frame_steps.tolist(), episode.frames, strict=True):
            jpeg = encoded_frame(name, split, number, step)
            np.testing.assert_array_equal(frame, simplejpeg.decode_jpeg(jpeg))


def test_of_several_splits_one_is_named(root: Path) -> None:
    loader = loader_of(root, "train+test")
    assert len(loader.episode("arm", 0, split="test").table) == 7
    assert len(loader.episode("arm", 0, split="train").table) == 5
    assert len(loader_of(root, "train[:1]", names=("arm",)).episode("arm", 4).table) == 9
    with pytest.raises(ArgumentError, match="dataset arm: split=None; give one of train, test"):
        loader.episode("arm", 0)


@pytest.mark.parametrize(
    ("name", "number", "split", "message"),
    [
        ("amr", 0, None, "dataset 'amr': did you mean 'arm'"),
        ("arm", 0, "test", "dataset arm: split='test'; give one of train"),
        ("arm", 5, None, "dataset arm, split train: episode 5 of 5"),
        ("arm", -1, None, "dataset arm, split train: episode -1 of 5"),
        ("arm", 1.5, None, "episode=1.5; expected a whole number"),
        ("arm", 0, [], r"split=\[\]; give one of train"),
    ],
)
def test_what_is_not_there_is_refused(root: Path, name: str, number: Any, split: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        loader_of(root).episode(name, number, split=split)


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": Vector(2, relative_to="first")},
        {"action": Vector(2, slots=8), "state": Vector(slots=8)},
        {"language": ("language", "source_file")},
    ],
    ids=["relative", "slots", "texts"],
)
def test_vectors_and_texts_of_batches_change_no_episode(tmp_path: Path, arguments: dict[str, Any]) -> None:
    write_dataset(tmp_path, "arm", LENGTHS, action=("target", "target", "flag"))
    episode = make_loader(tmp_path, "arm", batch_size=2, split="train", **arguments).episode("arm", 2)
    expected = loader_of(tmp_path, names=("arm",)).episode("arm", 2)
    assert episode.table.equals(expected.table)
    np.testing.assert_array_equal(episode.frames, expected.frames)


@pytest.mark.parametrize("damage", ["a flipped byte", "cut", "gone"])
def test_a_damaged_record_is_an_error_that_names_it(tmp_path: Path, damage: str) -> None:
    folder = write_dataset(tmp_path, "arm", LENGTHS)
    loader = loader_of(tmp_path, names=("arm",))
    path = folder / "train" / "train-00002-of-00003.arrayrecord"
    content = path.read_bytes()
    [position] = (
        r["position"] for r in read_table(folder, "records").to_pylist() if (r["episode"], r["step"]) == (4, 3)
    )
    if damage == "gone":
        path.unlink()
    else:
        cut, flipped = content[:-1], content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        path.write_bytes(cut if damage == "cut" else flipped)
    messages = {
        "a flipped byte": "row 12 of records: cannot be read .its bytes are not those that were written",
        "cut": rf"row 9 of records: {path}: .* bytes, the manifest says",
        "gone": rf"row 9 of records: {path}: missing",
    }
    with pytest.raises(FormatError, match=f"^dataset arm, split train, {messages[damage]}"):
        loader.episode("arm", 4)
    assert len(loader.episode("arm", 0).frames) == 5


@pytest.mark.parametrize(("name", "value"), [("shard", -1), ("shard", 3), ("position", 0), ("num_bytes", -1)])
def test_a_record_that_lies_elsewhere_is_an_error(tmp_path: Path, name: str, value: int) -> None:
    folder = write_dataset(tmp_path, "arm", LENGTHS)
    change_table(folder, "records", lambda table: with_values(table, name, [value] * len(table)))
    with pytest.raises(FormatError, match=r"^dataset arm, split train, row 0 of records: "):
        loader_of(tmp_path, names=("arm",)).episode("arm", 0)


@pytest.mark.parametrize("name", ["first_record", "num_records", "first_steps_row", "num_steps"])
@pytest.mark.parametrize("value", [-100, 100])
def test_an_episode_that_leads_outside_is_an_error(tmp_path: Path, name: str, value: int) -> None:
    folder = write_dataset(tmp_path, "arm", LENGTHS)

    def change(table: pa.Table) -> pa.Table:
        return with_values(table, name, [*table[name].to_pylist()[:-1], value])

    change_table(folder, "episodes", change)
    loader = loader_of(tmp_path, "train[:2]", names=("arm",))
    with pytest.raises(FormatError, match=r"episodes\.arrow: episode 4 leads outside of records or steps"):
        loader.episode("arm", 4)


def test_a_frame_of_another_size_is_an_error(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "arm", LENGTHS, size=(8, 16))
    assert loader_of(tmp_path, names=("arm",)).episode("arm", 0).frames.shape == (5, 8, 16, 3)
    changed = read_manifest(folder).model_copy(update={"image": {"encoding": "jpeg", "sizes": {"16x16": 1}}})
    (folder / "dataset.json").write_bytes(encode_manifest(changed))
    with pytest.raises(FormatError, match=r"row 0 of records: a frame cannot be decoded \(it is \(8, 16, 3\)"):
        loader_of(tmp_path, names=("arm",)).episode("arm", 0)


def test_an_episode_of_a_loader_of_clips_has_all_of_its_frames(frames_root: Path) -> None:
    frames, intervals = Frames.clip(3, rate=2.5), Vector(between="frames")
    clips = make_loader(frames_root, "bridge", batch_size=4, frames=frames, action=intervals)
    plain = make_loader(frames_root, "bridge", batch_size=4)
    np.testing.assert_array_equal(clips.episode("bridge", 1).frames, plain.episode("bridge", 1).frames)
    assert clips.episode("bridge", 1).frame_steps.tolist() == plain.episode("bridge", 1).frame_steps.tolist()


def test_an_episode_has_the_frames_of_all_cameras(frames_root: Path) -> None:
    def episode(cameras: Any, dataset: str = "droid") -> Episode:
        names = ["droid", dataset] if dataset != "droid" else ["droid"]
        return make_loader(frames_root, names, batch_size=4, frames=Frames((0,), cameras=cameras)).episode(dataset, 1)

    two_cameras = episode(["primary", "wrist"])
    assert list(two_cameras.cameras) == ["frames/primary", "frames/wrist"]
    for name, camera in two_cameras.cameras.items():
        alone = episode(name.partition("/")[2])
        assert list(alone.cameras) == ["frames"]
        np.testing.assert_array_equal(camera.frames, alone.frames)
        assert camera.steps.tolist() == alone.frame_steps.tolist() == list(range(alone.table.num_rows))
    primary, wrist = (loaded.frames for loaded in two_cameras.cameras.values())
    assert (primary != wrist).any()
    np.testing.assert_array_equal(two_cameras.frames, primary)
    lacking = episode(["primary", "wrist"], "bridge").cameras["frames/wrist"]
    assert (len(lacking.frames), lacking.steps.tolist()) == (0, [])


@pytest.mark.parametrize("attribute", ["frames", "frame_steps"])
def test_an_episode_of_a_loader_without_frames_names_the_remedy(root: Path, attribute: str) -> None:
    episode = make_loader(root, "arm", batch_size=2, split="train", frames=None).episode("arm", 0)
    assert (episode.cameras, len(episode.table)) == ({}, 5)
    with pytest.raises(ArgumentError, match=f"^{attribute}: .* made with frames=None.*; make one without frames=None"):
        getattr(episode, attribute)
