"""Arguments of ``make_loader`` and ``load_loader``: stated once, in any type, and refused with a hint."""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Frames, Loader, Select, StateError, Workers, load_loader, make_loader
from stream.loader import loader as module
from stream.loader.run_config import RunConfig
from stream.loader.sample_spec import SampleSpec
from stream.sample.vector import MOST_STEPS
from stream.sample.window import resolve_steps
from tests.stream.index_root import write_dataset
from tests.stream.transforms import Negative


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments")
    for name in ("arm", "hand"):
        write_dataset(folder, name, {"train": [[9, 9], [7]], "val": [[3]]}, offset=1, size=(8, 8))
    return folder


def loader_of(root: Path, mixture: Any = "arm", **arguments: Any) -> Loader:
    return make_loader(root, mixture, **{"batch_size": 4, **arguments})


def test_the_signature_and_the_settings_state_the_same_arguments() -> None:
    signature = inspect.signature(make_loader).parameters
    stated = {field.name: field for field in (*fields(SampleSpec), *fields(RunConfig))}
    # num_workers may be a number, decode is a field of frames, and to_device chooses where frames are augmented.
    assert Workers.of("num_workers", signature["num_workers"].default) == stated.pop("workers").default
    assert stated.pop("decode").default == Frames().decode
    assert stated.pop("augment").default == "host"
    assert set(signature) == {"root", "mixture", "split", "num_workers", "normalize", "cache", *stated}
    for name, field in stated.items():
        if name != "batch_size":
            assert signature[name].default == field.default, name
        # An object may be given in more forms than the one that is kept.
        if name not in ("frames", "action", "state", "select"):
            assert signature[name].annotation == field.type, name


def test_an_unknown_argument_suggests_the_closest(root: Path, tmp_path: Path) -> None:
    for name, closest in (("batchsize", "batch_size"), ("num_worker", "num_workers"), ("sead", "seed")):
        with pytest.raises(ArgumentError, match=f"unknown argument '{name}'; did you mean .*'{closest}'"):
            loader_of(root, **{name: 3})
    loader_of(root).save(tmp_path / "loader.json")
    with pytest.raises(ArgumentError, match="unknown argument 'num_worker'; did you mean 'num_workers'"):
        load_loader(tmp_path / "loader.json", num_worker=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunk_size": 8}, "unknown argument 'chunk_size'; write action=16, or action=stream.Vector(16)"),
        ({"action_horizon": 8}, "unknown argument 'action_horizon'; write action=16, or action=stream.Vector(16)"),
        ({"weights": {"arm": 1}}, "unknown argument 'weights'; write mixture={'bridge': 2, 'rt1': 1}, and of samples "),
        ({"epochs": 2}, "unknown argument 'epochs'; write num_epochs=1"),
        ({"device": "cuda"}, "unknown argument 'device'; write stream.torch.to_device(loader, device), which moves"),
        ({"mixture": {}}, "mixture={} names no dataset; expected a name, a list of dataset names, a mapping"),
        ({"mixture": []}, "mixture=[] names no dataset; expected a name, a list"),
        ({"split": "validation"}, "no split 'validation', there are 'train', 'val'; did you mean 'val'?"),
        ({"mixture": "oxe29", "split": "validation"}, "is none of its roles (train, val); did you mean 'val'? With a"),
        ({"mixture": "oxe29", "split": "x"}, "split='x' is none of its roles (train, val); with a named mixture"),
    ],
)
def test_words_of_other_programs_lead_to_the_argument(root: Path, arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        loader_of(root, **{"mixture": "arm", **arguments})


@pytest.mark.parametrize("use", [next, len, lambda loader: loader[0], lambda loader: next(torch_loader(loader))])
def test_a_loader_that_is_used_as_a_sequence_or_iterator_says_what_gives_batches(root: Path, use: Any) -> None:
    loader = loader_of(root, num_steps=2)
    with pytest.raises(TypeError, match=r"^a Loader .*; iter\(loader\) gives .* stream\.torch\.StreamDataset"):
        use(loader)
    assert loader and len(list(loader)) == 2


def torch_loader(loader: Loader) -> Any:
    return iter(pytest.importorskip("torch.utils.data").DataLoader(loader, batch_size=None))


def test_a_number_of_seconds_is_bounded_as_steps_are() -> None:
    fields: Any = [SimpleNamespace(control_frequency=rate) for rate in (5.0, 15.0)]
    limits: Any = {"least": 1, "most": MOST_STEPS}
    assert resolve_steps("steps", ["6000s"] * 2, fields, ("slow", "fast"), **limits) == (30_000, 90_000)
    message = "steps='9999s': expected 1 to 100,000 steps, and it is 149,985 at the 15.0 Hz of fast; give another"
    with pytest.raises(ArgumentError, match=re.escape(message)):
        resolve_steps("steps", ["9999s"] * 2, fields, ("slow", "fast"), **limits)


def test_numbers_of_numpy_are_numbers(root: Path, tmp_path: Path) -> None:
    mixture = {"arm": 2, "hand": 1}
    plain = loader_of(root, mixture, frames=[0, 1], action=2, seed=3, num_steps=5, rank=1, world_size=2)
    numbers: dict[str, Any] = {"batch_size": np.int32(4), "action": np.int8(2), "seed": np.uint16(3)}
    numbers |= {"num_steps": np.int64(5), "rank": np.int32(1), "world_size": np.int32(2), "frames": range(2)}
    numpy_loader = loader_of(root, {"arm": np.int64(2), "hand": np.float32(1)}, **numbers)
    for loader, name in ((plain, "plain.json"), (numpy_loader, "numpy.json")):
        loader.save(tmp_path / name)
    assert (tmp_path / "numpy.json").read_bytes() == (tmp_path / "plain.json").read_bytes()
    assert json.dumps(numpy_loader.state_at(3)) == json.dumps(plain.state_at(3))
    assert numpy_loader.fingerprint == plain.fingerprint
    assert numpy_loader.batch_at(np.int64(2))["step"].tolist() == plain.batch_at(2)["step"].tolist()  # type: ignore[arg-type]
    assert numpy_loader.state_at(np.int64(2)) == plain.state_at(2)  # type: ignore[arg-type]
    schedule = [(np.int64(5), {"arm": np.int64(1)}), (None, {"hand": 1})]
    assert loader_of(root, schedule).weights_at(5) == {"arm": 0, "hand": 1}


def test_a_list_of_datasets_is_a_mixture_of_equal_weights(root: Path) -> None:
    assert loader_of(root, ["arm", "hand"]).fingerprint == loader_of(root, "arm,hand").fingerprint
    assert loader_of(root, ("hand",)).dataset_names == ("hand",)
    with pytest.raises(ArgumentError, match="'hnad'; did you mean 'hand'"):
        loader_of(root, ["arm", "hnad"])


def test_a_system_without_shared_memory_is_one_sentence(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader_of(root).save(tmp_path / "loader.json")
    monkeypatch.setattr(sys, "platform", "win32")
    message = r"^batches are made in shared memory of Linux or macOS, and this is win32; use Linux$"
    for call in (lambda: loader_of(root), lambda: load_loader(tmp_path / "loader.json")):
        with pytest.raises(OSError, match=message):
            call()


def test_a_file_defines_the_samples_of_its_run(root: Path, tmp_path: Path) -> None:
    loader_of(root, [(8, {"arm": 1}), (None, {"hand": 1})]).save(tmp_path / "loader.json")
    for name in ("batch_size", "seed", "select", "action"):
        with pytest.raises(ArgumentError, match=rf"{name}: .*loader\.json defines it"):
            load_loader(tmp_path / "loader.json", **{name: 8})  # type: ignore[arg-type]


def test_transforms_that_a_file_does_not_have_are_named(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "loader.json"
    loader_of(root, transforms=[Negative()]).save(path)
    load_loader(path)
    (record,) = caplog.records
    assert "Negative" in record.getMessage() and "transforms=" in record.getMessage()
    caplog.clear()
    load_loader(path, transforms=[Negative()])
    load_loader(path, transforms=[])
    loader_of(root).save(path)
    load_loader(path)
    assert not caplog.records


@pytest.mark.long
def test_ranges_of_very_many_episodes_come_back_from_the_file(root: Path, tmp_path: Path) -> None:
    ranges = {f"{'elsewhere/' * 900}{number}": [[0, 5], [7, 9]] for number in range(6_000)}
    ranges["*__0"] = [[1, 4]]
    loader = loader_of(root, select=Select(keep_ranges={"arm": ranges}))
    path = tmp_path / "loader.json"
    loader.save(path)
    assert path.stat().st_size > 50_000_000
    assert load_loader(path).fingerprint == loader.fingerprint


def test_a_file_that_could_not_be_read_again_is_not_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.loader.state._MAX_FILE_BYTES", 100)
    with pytest.raises(ArgumentError, match="at most 100; give episodes and keep_ranges as files"):
        loader_of(root).save(tmp_path / "loader.json")
    assert list(tmp_path.iterdir()) == []


def test_an_iterator_ends_at_its_stop(root: Path) -> None:
    iterator = iter(loader_of(root, num_steps=3))
    assert [batch["sample"][0] // 4 for batch in iterator] == [0, 1, 2]
    iterator.seek(3)
    iterator.stop = 5
    assert [batch["sample"][0] // 4 for batch in iterator] == [3, 4]
    iterator.stop = None
    assert next(iterator)["sample"][0] // 4 == 5
    with pytest.raises(ArgumentError, match="step=-1"):
        iterator.seek(-1)
    with pytest.raises(StateError, match="not a state"):
        iterator.set_state({})
    assert module.Loader is Loader


@pytest.mark.parametrize(("processors", "workers"), [(1, 1), (2, 1), (12, 11), (192, 64)])
def test_auto_leaves_a_processor_to_the_trainer(
    root: Path, monkeypatch: pytest.MonkeyPatch, processors: int, workers: int
) -> None:
    monkeypatch.setattr("stream.loader.run_config.usable_processors", lambda: processors)
    loader = loader_of(root, num_workers="auto")
    assert loader.num_workers == workers
    assert str(loader) == f"Loader(1 datasets, batch_size=4, num_workers={workers})"
    assert f"{workers} workers" in loader._repr_html_()


def test_another_word_than_auto_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="num_workers='many'; expected a whole number >= 0, or 'auto'"):
        loader_of(root, num_workers="many")
    loader_of(root).save(tmp_path / "loader.json")
    assert load_loader(tmp_path / "loader.json", num_workers="auto").num_workers >= 1
