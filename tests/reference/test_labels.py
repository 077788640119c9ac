"""Labels of random tables are at the steps, in the batches and in the choices where loops over the rows put them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stream
from stream.base.errors import ArgumentError
from tests.reference import labels as reference
from tests.stream.index_root import open_split

SHORT, LONG = 16, 300
OFFSET = 2
"""Steps between the frames of a pair."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    reference.write_datasets(folder)
    return folder


def compare_all(numbers: range, root: Path, folder: Path, patch: pytest.MonkeyPatch) -> Counter[str]:
    episodes = {name: reference.episodes_of(root, name) for name in reference.DATASETS}
    counts: Counter[str] = Counter()
    for number in numbers:
        random = np.random.default_rng(number)
        patch.setattr("stream.label.table._MOST_ROWS", int(random.integers(1, 9)))
        patch.setattr("stream.label.step_positions._AT_ONCE", int(random.integers(1, 9)))
        name = str(random.choice(list(reference.DATASETS)))
        table = reference.random_table(random, name, episodes[name])
        (folder / str(number)).mkdir()
        try:
            counts += compare(table, root, name, episodes[name], folder / str(number))
        except Exception as error:
            error.add_note(f"table {number} of {name}, split {table.split}, {table.form}: {table.rows}")
            raise
    return counts


def compare(
    table: reference.RandomTable, root: Path, name: str, episodes: Sequence[reference.Episode], folder: Path
) -> Counter[str]:
    """Attach a table, compare every step with the reference, and remove it."""
    label_path = reference.given_to_stream(table, folder)
    arguments: dict[str, Any] = {"name": "random", "split": table.split}
    try:
        expected = reference.expected_labels(table, name, episodes)
    except reference.Refused as reason:
        try:
            stream.add_labels(root, name, label_path, **arguments)
        except ArgumentError:
            return Counter(refused=1)
        raise AssertionError(f"accepted what the reference refuses: {reason}") from None
    stream.add_labels(root, name, label_path, **arguments)
    counts = Counter(attached=1)
    splits = list(reference.DATASETS[name]) if table.split is None else [table.split]
    for split in splits:
        stored = open_split(next((root / name).glob("*")), split).steps.arrow().select(reference.LABELS).to_pylist()
        keys = [
            (split, listed.number, step)
            for listed in episodes
            if listed.split == split
            for step in range(listed.length)
        ]
        for row, key in zip(stored, keys, strict=True):
            labels = expected.get(key, dict.fromkeys(reference.LABELS))
            assert all(reference.is_same(row[label], labels[label]) for label in reference.LABELS), (key, row, labels)
        counts["rows"] += len(stored)
    check_loaders(root, name, splits[0], expected, episodes)
    stream.remove_labels(root, name, "random")
    return counts


def check_loaders(
    root: Path,
    name: str,
    split: str,
    expected: dict[tuple[str, int, int], reference.Row],
    episodes: Sequence[reference.Episode],
) -> None:
    """Filters keep the samples that the reference keeps, with its values; weights draw them in its shares."""
    inside = [episode for episode in episodes if episode.split == split]
    samples = [(episode.number, step) for episode in inside for step in range(episode.length - OFFSET)]
    sample_labels = {key: expected.get((split, *key), dict.fromkeys(reference.LABELS)) for key in samples}
    kept = {key for key, labels in sample_labels.items() if labels["grade"] is not None and labels["grade"] > -4}
    weights = {key: labels["weight"] for key, labels in sample_labels.items() if labels["weight"] is not None}
    arguments: dict[str, Any] = {"split": split, "columns": ["x", "grade", "weight"], "num_workers": 0}
    if kept:
        loader = stream.make_loader(
            root,
            name,
            batch_size=len(kept),
            select=stream.Select(where=[("grade", ">", -4)]),
            num_epochs=1,
            **arguments,
        )
        batch = loader.batch_at(0)
        keys = list(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True))
        assert sorted(keys) == sorted(kept)
        for row, key in enumerate(keys):
            x, has = sample_labels[key]["x"], bool(batch["x_mask"][row])
            assert (batch["grade"][row], has) == (sample_labels[key]["grade"], x is not None)
            np.testing.assert_array_equal(batch["x"][row], np.nan if x is None else x)
    if total := sum(weights.values()):
        size = len(weights)
        loader = stream.make_loader(
            root,
            name,
            batch_size=size,
            select=stream.Select(where=[("weight", ">=", 0)]),
            sample_weights="weight",
            **arguments,
        )
        assert list(loader.sizes.values()) == [size]
        batch = loader.batch_at(0)
        drawn = Counter(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True))
        for key, weight in weights.items():
            share = size * weight / total
            assert math.floor(share) <= drawn[key] <= math.ceil(share), (key, drawn[key], share)
        assert drawn.keys() <= weights.keys()


def test_random_labels_are_where_loops_put_them(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = compare_all(range(SHORT), root, tmp_path, monkeypatch)
    assert counts["attached"] > SHORT / 3 and counts["refused"] > SHORT / 8


@pytest.mark.long
def test_many_random_labels_are_where_loops_put_them(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = compare_all(range(SHORT, SHORT + LONG), root, tmp_path, monkeypatch)
    print(dict(counts))
    assert counts["attached"] > LONG / 3 and counts["refused"] > LONG / 8
