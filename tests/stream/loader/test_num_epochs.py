"""Complete epochs: each sample once, on any number of ranks and workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, StateError, digest, load_loader, make_loader
from tests.stream.index_root import write_dataset

MIXTURE = {"arm": 5, "hand": 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets of 17 and 8 pairs."""
    folder = tmp_path_factory.mktemp("epochs")
    write_dataset(folder, "arm", {"train": [[7, 1, 9], [3, 6]]}, size=(8, 8))
    write_dataset(folder, "hand", {"train": [[5], [7]]}, size=(8, 8), action=("flag",))
    return folder


def loader_of(root: Path, **arguments: Any) -> Loader:
    return make_loader(root, MIXTURE, **{"batch_size": 4, "num_epochs": 1, **arguments})


def drawn(batches: Any) -> Counter[tuple[int, int, int]]:
    """Return how often each dataset, episode and step comes, without padding."""
    counts: Counter[tuple[int, int, int]] = Counter()
    for batch in batches:
        rows = [batch[key][batch["sample_mask"]].tolist() for key in ("dataset", "episode", "step")]
        counts.update(zip(*rows, strict=True))
    return counts


def every(root: Path) -> set[tuple[int, int, int]]:
    lengths = {(0, 0): 7, (0, 2): 9, (0, 3): 3, (0, 4): 6, (1, 0): 5, (1, 1): 7}
    return {(*episode, step) for episode, steps in lengths.items() for step in range(steps - 2)}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("batch_size", "num_epochs"), [(4, 1), (5, 2), (64, 1), (1, 1)])
def test_one_rank_gets_each_sample_as_often_as_there_are_epochs(
    root: Path, num_workers: int, batch_size: int, num_epochs: int
) -> None:
    loader = loader_of(root, batch_size=batch_size, num_epochs=num_epochs, num_workers=num_workers)
    batches = list(loader)
    assert drawn(batches) == dict.fromkeys(every(root), num_epochs)
    assert all(batch["sample_mask"].all() for batch in batches)
    total = num_epochs * len(every(root))
    assert [len(batch["sample"]) for batch in batches] == [
        min(batch_size, total - first) for first in range(0, total, batch_size)
    ]
    assert len(batches) == loader.num_steps
    for step, batch in enumerate(batches):
        assert digest(batch) == digest(loader.batch_at(step))
        assert [ref.step for ref in loader.describe(step)] == batch["step"].tolist()


@pytest.mark.parametrize(
    ("ranks", "num_workers", "shuffle"), [(2, 1, "global"), (4, 0, "none"), (4, 0, "block:4"), (2, 0, "none")]
)
def test_ranks_get_equal_batches_and_each_sample_once(root: Path, ranks: int, num_workers: int, shuffle: str) -> None:
    parts = [
        list(loader_of(root, batch_size=8, rank=rank, world_size=ranks, num_workers=num_workers, shuffle=shuffle))
        for rank in range(ranks)
    ]
    assert sum((drawn(part) for part in parts), Counter()) == dict.fromkeys(every(root), 1)
    assert {len(batch["sample"]) for part in parts for batch in part} == {8 // ranks}
    assert {len(part) for part in parts} == {4}
    assert sum((~batch["sample_mask"]).sum() for part in parts for batch in part) == 4 * 8 - len(every(root))
    full_batches = [batch["sample"].tolist() for batch in loader_of(root, batch_size=8, shuffle=shuffle)]
    together = [
        np.concatenate([part[step]["sample"][part[step]["sample_mask"]] for part in parts]) for step in range(4)
    ]
    assert [samples.tolist() for samples in together] == full_batches


def test_an_epoch_continues_from_its_state_and_from_its_file(root: Path, tmp_path: Path) -> None:
    loader = loader_of(root)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(3)]
    state = iterator.get_state()
    loader.save(tmp_path / "loader.json")
    loaded = iter(load_loader(tmp_path / "loader.json", num_workers=1))
    loaded.set_state(state)
    assert drawn([*first, *loaded]) == dict.fromkeys(every(root), 1)
    loaded.set_state(loader.state_at(loader.num_steps or 0))
    with pytest.raises(StopIteration):
        next(loaded)
    with pytest.raises(StateError, match="num_epochs: None was 'complete epochs'"):
        make_loader(root, MIXTURE, batch_size=4).step_of(state)


def test_num_steps_may_end_an_epoch_early_and_no_step_lies_beyond_it(root: Path) -> None:
    assert loader_of(root, num_steps=2).num_steps == len(list(loader_of(root, num_steps=2))) == 2
    assert loader_of(root, num_steps=99).num_steps == 7
    for look in (Loader.batch_at, Loader.describe):
        with pytest.raises(ArgumentError, match="step 7: the epochs end with step 6"):
            look(loader_of(root), 7)


def test_weights_do_not_apply_and_a_schedule_is_refused(root: Path) -> None:
    assert loader_of(root).weights == {"arm": 17 / 25, "hand": 8 / 25}
    assert loader_of(root).data.names == ("arm", "hand")
    assert make_loader(root, {"arm": 1, "hand": 0}, batch_size=4, num_epochs=1).weights == {"arm": 1}
    schedule = [(5, {"arm": 1}), (None, {"hand": 1})]
    with pytest.raises(ArgumentError, match="num_epochs=1: the mixture has a schedule of weights"):
        make_loader(root, schedule, batch_size=4, num_epochs=1)
    for num_epochs in (0, -1, 1.5, True):
        with pytest.raises(ArgumentError, match="num_epochs="):
            loader_of(root, num_epochs=num_epochs)
