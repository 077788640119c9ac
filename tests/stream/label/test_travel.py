"""Labels go along: to a copy, into a LeRobot dataset and back, through a new index, bit by bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stream
from convert.reindex import reindex_root
from convert.run.command import main as convert
from convert.verify.command import verify_root
from pairstream.export.command import export
from pairstream.fetch import fetch
from stream.format.catalog import Catalog
from stream.format.index import open_index
from stream.format.manifest import read_manifest
from stream.format.names import waiting_label
from tests.stream.index_root import write_dataset


def labels_of(root: Path, dataset: str, names: list[str] | None = None) -> dict[str, list[Any]]:
    """Every label of ``train`` as Arrow gives it, NaN as a text, by name."""
    steps = open_index(Catalog(root).open(dataset), "train").steps
    table = steps.arrow()
    names = names or [name for name, column in steps.columns.items() if column.file is not None]
    return {name: [repr(value) for value in table.column(name).to_pylist()] for name in names}


def labels(episodes: list[int], seed: int = 0, *, share: float = 0.8) -> pa.Table:
    """Labels of every kind, in any order."""
    random = np.random.default_rng(seed)
    episode = np.repeat(np.arange(len(episodes)), episodes)
    step = np.concatenate([np.arange(length) for length in episodes])
    rows = random.permutation(len(step))[: int(share * len(step))]
    size = len(rows)
    values = random.normal(size=size).astype("f4")
    values[0] = np.nan
    return pa.table(
        {
            "episode": episode[rows],
            "step": step[rows],
            "value": values,
            "double": random.normal(size=size),
            "good": random.random(size) < 0.5,
            "visits": random.integers(-5, 5, size).astype("i2"),
            "subtask": [["reach", "grasp ☕", ""][number] for number in random.integers(0, 3, size)],
            "latent": pa.FixedSizeListArray.from_arrays(pa.array(random.normal(size=6 * size).astype("f2")), 6),
        }
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "source", "demo", {"train": [[5, 4], [6]], "val": [[3]]})
    stream.add_labels(tmp_path / "source", "demo", labels([5, 4, 6]), name="all", split="train")
    return tmp_path / "source"


def test_a_fetched_copy_has_the_labels_and_follows_the_source(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    fetch(str(source), copy, "demo", splits=["train[:1]"])
    assert labels_of(copy, "demo") == labels_of(source, "demo")
    stream.add_labels(source, "demo", labels([5, 4, 6], 1), name="all", split="train", overwrite=True)
    done = fetch(str(source), copy, "demo", splits=["train[:1]"])
    assert done["files_fetched"] == 1
    assert labels_of(copy, "demo") == labels_of(source, "demo")
    assert fetch(str(source), copy, "demo", splits=["train"])["files_fetched"] == 1
    shutil.rmtree(source)
    loader = stream.make_loader(copy, "demo", batch_size=2, columns=["value"])
    assert "value" in loader.batch_at(0)


def test_labels_of_a_partial_copy_stay_when_more_is_fetched(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    fetch(str(source), copy, "demo", splits=["train[:1]"])
    stream.add_labels(copy, "demo", {"episode": [0], "mine": [1.5]}, split="train")
    fetch(str(source), copy, "demo", splits=["train", "val"])
    assert labels_of(copy, "demo", ["mine"])["mine"][:6] == ["1.5"] * 5 + ["None"]
    assert labels_of(copy, "demo", ["value"]) == labels_of(source, "demo", ["value"])
    stream.remove_labels(copy, "demo", "mine")
    assert read_manifest(next(copy.glob("demo/*"))) == read_manifest(next(source.glob("demo/*")))
    stream.add_labels(copy, "demo", {"episode": [0], "mine": [1.5]}, split="train")
    stream.add_labels(source, "demo", {"episode": [0], "mine": [2.5]}, name="theirs", split="train")
    with pytest.raises(ValueError, match="labels mine here and labels theirs of the source both have the"):
        fetch(str(source), copy, "demo", splits=["train"])


@pytest.fixture
def frames(frames_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(frames_root / "bridge", tmp_path / "root" / "bridge")
    return tmp_path / "root"


def only(values: list[str], missing: list[bool]) -> list[str]:
    """Return the values that are not missing."""
    return [value for value, lacks in zip(values, missing, strict=True) if not lacks]


def lengths_of(root: Path) -> list[int]:
    lengths: list[int] = open_index(Catalog(root).open("bridge"), "train").episodes.array("num_steps").tolist()
    return lengths


@pytest.mark.long
def test_labels_go_through_a_lerobot_dataset_and_back_and_through_a_new_index(frames: Path, tmp_path: Path) -> None:
    stream.add_labels(frames, "bridge", labels(lengths_of(frames)), name="all", split="train")
    before = labels_of(frames, "bridge")
    reindex_root(str(frames))
    assert labels_of(frames, "bridge") == before
    assert reindex_root(str(frames))[0]["changed"] == ()
    assert verify_root(frames, jobs=1).ok
    export(frames, tmp_path / "slice", dataset="bridge", split="train")
    options = ["--datasets", f"lerobot:{tmp_path / 'slice'}", "--output", str(tmp_path / "again"), "--layout", "frames"]
    assert convert([*options, "--cameras", "all", "--image-size", "native", "--num-workers", "1"]) == 0
    (dataset,) = [path.name for path in (tmp_path / "again").iterdir() if not path.name.startswith(".")]
    # As features of the source: with a mask of their own, and double as LeRobot's reader gives it, in 32 bits.
    names = ["value", "good", "visits", "subtask", "latent"]
    returned = labels_of(tmp_path / "again", dataset, [*names, *(f"{name}_mask" for name in names)])
    for name in names:
        missing = [value == "False" for value in returned[f"{name}_mask"]]
        assert missing == [value == "None" for value in before[name]]
        assert [v for v, no in zip(returned[name], missing, strict=True) if not no] == [
            v for v in before[name] if v != "None"
        ]
    # As labels again, all of them bit by bit.
    stream.remove_labels(frames, "bridge", "all")
    columns = ["value", "double", "good", "visits", "subtask", "latent"]
    stream.add_labels(frames, "bridge", tmp_path / "slice" / "data", name="all", columns=columns, split="train")
    assert labels_of(frames, "bridge") == before


def test_labels_that_wait_for_their_name_are_read_verified_and_fetched(source: Path, tmp_path: Path) -> None:
    expected = labels_of(source, "demo")
    version = next(source.glob("demo/*"))
    entry = read_manifest(version).splits["train"].labels["all"]
    path = version / "train" / "labels" / "all.arrow"
    path.rename(path.with_name(waiting_label("all", entry.sha256)))
    path.write_bytes(b"what was there before")
    assert labels_of(source, "demo") == expected
    assert [problem for problem in verify_root(source, jobs=1).problems if "/labels/" in str(problem.file)] == []
    fetch(str(source), tmp_path / "copy", "demo", splits=["train"])
    assert labels_of(tmp_path / "copy", "demo") == expected
    stream.add_labels(source, "demo", {"episode": [0], "more": [1]}, split="train")
    assert sorted(each.name for each in path.parent.iterdir()) == ["all.arrow", "more.arrow"]
    assert labels_of(source, "demo", list(expected)) == expected


@pytest.mark.long
def test_a_conversion_of_a_root_makes_labels_columns(frames_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(frames_root / "bridge", root / "bridge")
    label_table = labels(lengths_of(root))
    stream.add_labels(root, "bridge", label_table, name="all", split="train")
    chosen = ["--datasets", f"root:{root / 'bridge'}", "--output", str(tmp_path / "out"), "--num-workers", "1"]
    assert convert(chosen) == 0
    names = [name for name in label_table.column_names if name not in ("episode", "step")]
    assert labels_of(tmp_path / "out", "bridge", names) == labels_of(root, "bridge")
    stream.add_labels(root, "bridge", labels(lengths_of(root), 1), name="all", split="train", overwrite=True)
    assert convert(chosen) != 0, "another source"
