"""The loader gives the same batches however it runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, Normalize, Select, Vector, Workers, digest, load_loader, make_loader, samples
from stream.batch.spec import Batch
from stream.format.schema import feature_column
from tests.fixtures.parameters import long_but
from tests.stream.transforms import Jitter, Modules, Negative, Noise

BATCH = 48
STEPS = 40


def loader_of(root: Path, **arguments: Any) -> Loader:
    return make_loader(root, "oxe29", **{"batch_size": BATCH, "seed": 7, **arguments})


@cache
def transforms(root: Path) -> tuple[Any, ...]:
    """Return normalisation, and an augmentation that draws by sample."""
    return Normalize(loader_of(root)), Jitter()


def full_loader(root: Path, **arguments: Any) -> Loader:
    return loader_of(root, transforms=transforms(root), **arguments)


@cache
def reference(root: Path) -> tuple[str, ...]:
    """Return the digests of the first steps with transforms, each batch made by itself in this process."""
    loader = full_loader(root, num_workers=Workers(threads=1))
    return tuple(digest(loader.batch_at(step)) for step in range(STEPS))


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the global batch of the ranks' batches, in rank order."""
    return {
        key: list(chain.from_iterable(batch[key] for batch in batches))
        if isinstance(batches[0][key], list)
        else np.concatenate([batch[key] for batch in batches])
        for key in batches[0]
    }


@pytest.mark.parametrize(
    ("num_workers", "threads"), long_but([(0, 3), (2, 1)], [(0, 1), (0, 3), (1, 3), (2, 1), (3, 1), (8, 1)])
)
def test_batches_do_not_depend_on_workers_and_threads(oxe_root: Path, num_workers: int, threads: int) -> None:
    loader = full_loader(oxe_root, num_workers=Workers(num_workers, threads=threads), num_steps=STEPS)
    assert len(loader.dataset_names) == 29
    assert [digest(batch) for batch in loader] == list(reference(oxe_root))


@pytest.mark.parametrize("world_size", long_but([3], [2, 3, 4, 6]))
def test_the_ranks_batches_in_a_row_are_the_global_batch(oxe_root: Path, world_size: int) -> None:
    ranks = [full_loader(oxe_root, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step in range(0, STEPS, 4):
        batches = [rank.batch_at(step) for rank in ranks]
        assert {len(batch["sample"]) for batch in batches} == {BATCH // world_size}
        assert digest(joined(batches)) == reference(oxe_root)[step]


@pytest.mark.parametrize(
    ("before", "after"),
    long_but(
        [((0, 1), (2, 2)), ((2, 2), (0, 3))],
        [((0, 1), (2, 2)), ((2, 2), (0, 3)), ((1, 3), (0, 4)), ((0, 4), (1, 6)), ((0, 6), (8, 1)), ((8, 1), (3, 1))],
    ),
    ids=lambda run: f"{run[0]} workers, {run[1]} ranks",
)
def test_a_run_can_be_resumed_with_other_workers_and_ranks(
    oxe_root: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    first = iter(full_loader(oxe_root, num_workers=before[0], rank=before[1] - 1, world_size=before[1]))
    first.set_state(first.loader.state_at(random.Random(before[1]).randrange(STEPS - 4)))
    next(first)
    state = json.loads(json.dumps(first.get_state()))
    first.close()
    ranks = [iter(full_loader(oxe_root, num_workers=after[0], rank=r, world_size=after[1])) for r in range(after[1])]
    for rank in ranks:
        rank.set_state(state)
    for step in range(state["step"], state["step"] + 2):
        assert digest(joined([next(rank) for rank in ranks])) == reference(oxe_root)[step]
    for rank in ranks:
        rank.close()


def test_single_samples_are_those_of_the_batches(oxe_root: Path) -> None:
    dataset = samples(oxe_root, "oxe29", seed=7)
    loader = loader_of(oxe_root)
    for step in (0, 3, STEPS - 1):
        batch = loader.batch_at(step)
        for row in range(0, BATCH, 5):
            sample = dataset[step * BATCH + row]
            assert sample.keys() == batch.keys()
            for key, value in sample.items():
                if isinstance(value, str):
                    assert value == batch[key][row]
                else:
                    np.testing.assert_array_equal(value, batch[key][row], strict=True)


def test_names_of_dimensions_are_those_of_columns(oxe_root: Path) -> None:
    """Compare with the registry's parts in the manifest, and the raw columns of the step that ``describe`` names."""
    loader = loader_of(oxe_root)
    batch, refs = loader.batch_at(2), loader.describe(2)
    assert list(loader.action_names) == list(loader.state_names) == list(loader.dataset_names)
    for row, ref in enumerate(refs):
        member = loader.dataset_names.index(ref.dataset)
        spec = loader.data.datasets[member].manifest.spec
        table = loader.episode(ref.dataset, ref.episode).table
        for key, names in (("action", loader.action_names), ("state", loader.state_names)):
            mask, values = batch[f"{key}_mask"][row], batch[key][row]
            mask, values = (mask[0], values[0]) if key == "action" else (mask, values)
            assert mask.tolist() == [True] * len(names[ref.dataset]) + [False] * (len(values) - len(names[ref.dataset]))
            said: list[str] = []
            for part in spec.get(key) or ():
                flat = np.ravel(table[feature_column("steps", part["path"])][ref.step].as_py())
                chosen = part["select"] or range(len(flat))
                said += part["names"] or [f"{part['path']}[{number}]" for number in chosen]
                column = values[len(said) - len(chosen) : len(said)]
                np.testing.assert_array_equal(column, flat[list(chosen)].astype(np.float32))
            assert said == list(names[ref.dataset])


def test_the_batch_has_the_promised_types_and_shapes(oxe_root: Path) -> None:
    batch = loader_of(oxe_root).batch_at(0)
    window, action, state = batch["action"].shape[1], batch["action"].shape[2], batch["state"].shape[1]
    assert window == 10  # the largest offset of the mixture
    expected = {
        "frames": (np.uint8, (BATCH, 2, 64, 64, 3)),
        "sample": (np.int64, (BATCH,)),
        "dataset": (np.int32, (BATCH,)),
        "action": (np.float32, (BATCH, window, action)),
        "action_mask": (np.bool_, (BATCH, window, action)),
        "state": (np.float32, (BATCH, state)),
        "state_mask": (np.bool_, (BATCH, state)),
        "episode": (np.int64, (BATCH,)),
        "step": (np.int64, (BATCH,)),
        "offset": (np.int64, (BATCH,)),
    }
    assert {key: (value.dtype.type, value.shape) for key, value in batch.items() if key != "language"} == expected
    assert len(batch["language"]) == BATCH
    assert all(isinstance(text, str) for text in batch["language"])
    assert not batch["action"][~batch["action_mask"]].any()
    assert not batch["state"][~batch["state_mask"]].any()


def test_transforms_run_where_the_batch_is_made(oxe_root: Path) -> None:
    plain = loader_of(oxe_root).batch_at(3)
    for num_workers in (0, 2):
        loader = loader_of(oxe_root, num_workers=num_workers, transforms=[Negative()])
        batch = list(zip(range(4), loader, strict=False))[3][1]
        np.testing.assert_array_equal(batch["inverse"], 255 - plain["frames"][:, :1])
        np.testing.assert_array_equal(batch["twice"], np.repeat(plain["frames"], 2, axis=1))
        assert batch["note"] == {"a": bytes(1 << 20)}
        assert list(batch) == ["inverse", "twice", "note"]


def test_random_transforms_draw_the_same_at_a_step_and_other_at_another(oxe_root: Path) -> None:
    arguments: Any = {"transforms": [Noise()], "action": None, "state": None, "language": None}
    loaders = [loader_of(oxe_root, num_workers=num_workers, **arguments) for num_workers in (0, 2)]
    drawn = [[batch["noise"].copy() for _, batch in zip(range(5), loader, strict=False)] for loader in loaders]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(loaders[0].batch_at(4)["noise"], drawn[1][4])
    assert len({noise.tobytes() for noise in drawn[0]}) == 5
    other_rank = loader_of(oxe_root, rank=1, world_size=2, **arguments).batch_at(4)
    assert not np.array_equal(other_rank["noise"], drawn[0][4][:24])


def test_a_worker_imports_nothing_that_it_does_not_use(oxe_root: Path) -> None:
    loader = loader_of(oxe_root, num_workers=1, transforms=[*transforms(oxe_root), Modules()])
    iterator = iter(loader)
    imported = set(next(iterator)["modules"])
    iterator.close()
    assert {"numpy", "simplejpeg", "stream"} <= imported
    assert not imported & {"pyarrow", "grain", "pydantic", "tensorflow", "jax", "torch", "yaml", "array_record"}


def test_a_saved_loader_gives_the_same_batches(oxe_root: Path, tmp_path: Path) -> None:
    loader = make_loader(
        oxe_root,
        {"bridge": 2, "kuka": "size", "droid": {"size_power": 0.5, "factor": 3}},
        batch_size=6,
        split="train[25%:]",
        shuffle="block:3",
        samples_per_episode=2,
        select=Select(where={"bridge": [("step", ">=", 1)]}),
        columns=("reward",),
        action=Vector(reduce="mean"),
    )
    loader.save(tmp_path / "run" / "loader.json")
    loaded = load_loader(tmp_path / "run" / "loader.json", num_workers=1)
    for step, batch in zip(range(4), loaded, strict=False):
        assert digest(batch) == digest(loader.batch_at(step))
    assert loaded.weights == loader.weights


class Anything:
    def __repr__(self) -> str:
        return "anything"


@pytest.mark.parametrize("value", [None, 5, Anything()])
def test_what_is_no_path_and_no_list_of_transforms_is_refused(oxe_root: Path, tmp_path: Path, value: Any) -> None:
    loader = make_loader(oxe_root, "bridge", batch_size=4)
    with pytest.raises(ArgumentError, match=f"root={value!r}; expected a folder"):
        make_loader(value, "bridge", batch_size=4)
    with pytest.raises(ArgumentError, match=f"path={value!r}; expected the name of a loader.json"):
        load_loader(value)
    with pytest.raises(ArgumentError, match=f"path={value!r}; expected the name of a file"):
        loader.save(value)
    with pytest.raises(ArgumentError, match=r"is a folder; give a file's name, such as .*/loader\.json"):
        loader.save(tmp_path)
    with pytest.raises(ArgumentError, match=r"transforms=.*; expected a list of grain\.transforms\.Map or RandomMap"):
        make_loader(oxe_root, "bridge", batch_size=4, transforms=value)


def test_stats_count_what_was_given_out(oxe_root: Path) -> None:
    loader = loader_of(oxe_root, num_workers=1)
    iterator = iter(loader)
    seen = np.concatenate([next(iterator)["dataset"] for _ in range(4)])
    stats = loader.stats()
    assert stats["batches"] == 4
    assert stats["samples"] == 4 * BATCH
    assert stats["replaced"] == 0
    assert list(stats["per_dataset"].values()) == np.bincount(seen, minlength=29).tolist()
    for key in ("wait_s", "read_s", "decode_s", "metadata_s", "bytes", "ring_slots", "ring_bytes"):
        assert stats[key] > 0
    iterator.close()
