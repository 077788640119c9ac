"""The samples through Grain's own interfaces."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from stream import ArgumentError, Frames, SampleSource, Select, make_loader, row_random, samples

MIXTURE = {"bridge": 2, "kuka": 1, "bc_z": "size"}


def test_samples_compose_with_grains_own_transformations(oxe_root: Path) -> None:
    dataset = samples(oxe_root, MIXTURE, seed=1, action=None, state=None, language=None)
    batches = dataset.map(lambda sample: {**sample, "mean": sample["frames"].mean()}).batch(4)
    iterator = iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))
    loader = make_loader(oxe_root, MIXTURE, batch_size=4, seed=1)
    for step in range(3):
        batch, expected = next(iterator), loader.batch_at(step)
        for key in ("frames", "sample", "dataset"):
            np.testing.assert_array_equal(batch[key], expected[key])
    state = iterator.get_state()
    after = next(iterator)["sample"]
    iterator.set_state(state)
    np.testing.assert_array_equal(next(iterator)["sample"], after)


def test_a_loader_composes_as_an_iter_dataset(oxe_root: Path) -> None:
    loader = make_loader(oxe_root, MIXTURE, batch_size=4, num_workers=1)
    mapped = iter(loader.map(lambda batch: batch["sample"].copy()))
    assert next(mapped).tolist() == [0, 1, 2, 3]
    state = mapped.get_state()
    assert next(mapped).tolist() == [4, 5, 6, 7]
    mapped.set_state(state)
    assert next(mapped).tolist() == [4, 5, 6, 7]
    assert isinstance(iter(loader), grain.DatasetIterator)
    assert isinstance(loader, grain.IterDataset)


def test_a_source_holds_every_sample_once(oxe_root: Path) -> None:
    source = SampleSource(oxe_root, MIXTURE, split="train")
    refs: Counter[tuple[int, int, int]] = Counter()
    for index in range(len(source)):
        sample = source[index]
        assert sample["sample"] == index
        refs[int(sample["dataset"]), int(sample["episode"]), int(sample["step"])] += 1
    sizes = make_loader(oxe_root, MIXTURE, batch_size=1).sizes
    assert len(refs) == len(source) == sum(sizes.values())
    np.testing.assert_array_equal(source[-1]["frames"], source[len(source) - 1]["frames"])
    with pytest.raises(IndexError):
        source[len(source)]


def test_a_source_feeds_grains_data_loader(oxe_root: Path) -> None:
    source = SampleSource(oxe_root, {"bridge": 1}, action=None, state=None, language=None)
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=3, num_epochs=1)
    loader = grain.DataLoader(
        data_source=source, sampler=sampler, operations=[grain.transforms.Batch(5)], worker_count=0
    )
    seen = np.concatenate([batch["sample"] for batch in loader])
    assert sorted(seen) == list(range(len(source)))


def test_complete_epochs_have_a_length(oxe_root: Path) -> None:
    dataset = samples(oxe_root, MIXTURE, num_epochs=2, action=None, state=None, language=None)
    assert len(dataset) == 2 * sum(dataset.data.sizes.values())
    assert dataset[len(dataset) - 1]["sample_mask"]
    assert [dataset[1::3][k]["sample"] for k in range(3)] == [1, 4, 7]  # as for ranks
    with pytest.raises(ArgumentError, match=f"expected 0 to {len(dataset) - 1}:"):
        dataset[len(dataset)]


def test_samples_draw_random_frames_and_numbers_again_in_each_epoch(frames_root: Path) -> None:
    dataset = samples(frames_root, "bridge", split="train[:1]", shuffle="none", frames=[0, "1..3", "goal"])
    size = dataset.data.sizes["bridge"]
    epochs = [[dataset[epoch * size + k] for k in range(size)] for epoch in range(3)]
    drawn = [[(*sample["frame_step"], row_random(sample)[0]) for sample in epoch] for epoch in epochs]
    for column in (1, 2, 3):  # "1..3", "goal", row_random
        assert len({tuple(row[column] for row in epoch) for epoch in drawn}) == 3
    assert len({tuple(row[0] for row in epoch) for epoch in drawn}) == 1
    with pytest.raises(ArgumentError, match="take further samples instead of repeating some"):
        dataset[:size].repeat(2)[size]


@pytest.mark.parametrize(("frames", "named"), [([0, "1..3"], "'1..3'"), (["goal", 0], "'goal'")])
def test_a_source_refuses_random_choices(frames_root: Path, frames: list[Any], named: str) -> None:
    with pytest.raises(ArgumentError, match=rf"SampleSource cannot draw {named} again in each epoch.*stream\.samples"):
        SampleSource(frames_root, "bridge", frames=frames)
    with pytest.raises(ArgumentError, match=rf"SampleSource cannot draw {named} again"):
        SampleSource(frames_root, {"bridge": {"frames": frames}, "kuka": 1}, frames=[0])
    assert SampleSource(frames_root, "bridge", frames=[0, 2, "last", "offset"])[0]["frames"].shape[0] == 4


def test_samples_of_a_relative_root_are_found_by_workers_elsewhere(
    oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(oxe_root.parent)
    source = pickle.dumps(SampleSource(oxe_root.name, "bridge"))
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(source)[0]["sample"] == 0


def test_the_text_of_a_source_says_which_data_it_has(oxe_root: Path) -> None:
    source = SampleSource(oxe_root, {"bridge": 1})
    assert repr(source) == repr(SampleSource(oxe_root, "bridge"))
    assert repr(source).startswith(f"SampleSource({len(source)} samples of 1 datasets, ")
    changes = [("kuka", Select()), ("bridge", Select(where=[("step", "<", 3)]))]
    assert repr(source) not in {repr(SampleSource(oxe_root, name, select=select)) for name, select in changes}


def test_grains_data_loader_refuses_a_checkpoint_of_other_data(oxe_root: Path) -> None:
    def load(name: str) -> grain.DataLoader:
        source = SampleSource(oxe_root, name, action=None, state=None, language=None)
        sampler = grain.samplers.IndexSampler(8, shuffle=False, num_epochs=1)
        return grain.DataLoader(data_source=source, sampler=sampler, worker_count=0)

    state = iter(load("bridge")).get_state()
    iter(load("bridge")).set_state(state)
    with pytest.raises(ValueError, match="source"):
        iter(load("kuka")).set_state(state)


def test_wrong_arguments_are_refused(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match="unknown argument 'batch_size'"):
        SampleSource(oxe_root, MIXTURE, batch_size=3)
    for name in ("shuffle", "seed", "samples_per_episode", "num_epochs"):
        with pytest.raises(ArgumentError, match=rf"SampleSource has no {name}: a sampler .*IndexSampler"):
            SampleSource(oxe_root, MIXTURE, **{name: "none"})
    for make in (samples, SampleSource):
        with pytest.raises(ArgumentError, match="decode='device' is for the batches of make_loader"):
            make(oxe_root, MIXTURE, frames=Frames(decode="device"))
    with pytest.raises(ArgumentError, match="on_error='skip'"):
        samples(oxe_root, MIXTURE, on_error="skip")
    dataset: Any = samples(oxe_root, MIXTURE)
    for number in (-1, 2**70):
        with pytest.raises(ArgumentError, match="count from 0"):
            dataset[number]
    source: Any = SampleSource(oxe_root, MIXTURE)
    for wrong_index in (1.5, "1"):
        for indexed in (dataset, source):
            with pytest.raises(TypeError):
                indexed[wrong_index]
