"""Content of batches beside their order: ``loader.json`` restores it, and a state says what of it differs."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stream
from pairstream.replay.command import main as replay
from stream import (
    ArgumentError,
    Frames,
    Loader,
    Normalize,
    Select,
    Vector,
    digest,
    load_loader,
    load_normalize,
    make_loader,
)
from stream.format.names import VECTORS
from stream.loader.sample_spec import SampleSpec
from tests.stream.index_root import write_dataset
from tests.stream.transforms import Halve


def load(root: Path, mixture: Any = "bridge,kuka", **arguments: Any) -> Loader:
    return make_loader(root, mixture, batch_size=6, **arguments)


def normalisations(root: Path, folder: Path) -> dict[str, Any]:
    """Return the forms of ``normalize=``; the last have numbers that this loader's data do not give."""
    load(root, "bridge,kuka,rt1", normalize={"method": "min_max", "clip": 2.0}).normalize.save(folder / "n.json")  # type: ignore[union-attr]
    late = Select(where=[("step", ">", 2)])
    return {
        "a method": "q01_q99",
        "settings": {"method": "mean_std", "over": "samples", "leave": ["x"]},
        "a file": load_normalize(folder / "n.json"),
        "another loader's": load(root, select=late, normalize={"over": "samples"}).normalize,
    }


@pytest.mark.parametrize("form", ["a method", "settings", "a file", "another loader's"])
def test_a_normalisation_comes_back_from_loader_json(
    form: str, oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = load(oxe_root, normalize=normalisations(oxe_root, tmp_path)[form])
    loader.save(tmp_path / "loader.json")
    loaded = load_loader(tmp_path / "loader.json")
    assert digest(loaded.batch_at(2)) == digest(loader.batch_at(2)) != digest(load(oxe_root).batch_at(2))
    assert loaded.content == loader.content
    assert replay(["--loader", str(tmp_path / "loader.json"), "--step", "2", "--digest"]) == 0
    assert capsys.readouterr().out.split() == ["2", digest(loader.batch_at(2))]
    stored = load_loader(tmp_path / "loader.json", normalize=False)
    assert digest(stored.batch_at(2)) == digest(load(oxe_root).batch_at(2))


def test_a_normalisation_keeps_its_place_among_transforms_that_are_given_again(
    oxe_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    normalize = Normalize(load(oxe_root), method="q01_q99")
    path = tmp_path / "loader.json"
    for transforms in ([Halve(), normalize], [normalize, Halve()]):
        loader = load(oxe_root, transforms=transforms)
        loader.save(path)
        expected = digest(loader.batch_at(1))
        assert digest(load_loader(path, transforms=[Halve()]).batch_at(1)) == expected
        assert digest(load_loader(path, transforms=transforms).batch_at(1)) == expected
    caplog.clear()
    assert digest(load_loader(path).batch_at(1)) == digest(load(oxe_root, normalize=normalize).batch_at(1))
    assert "loaded without the transforms of the run, which are code: " in caplog.text
    with pytest.raises(ArgumentError, match=r"normalize: .*loader\.json defines it"):
        load_loader(path, normalize="mean_std")


@pytest.mark.parametrize("entry", [5, None, [], {}, {"format": "stream-normalize", "version": 1, "settings": 5}])
def test_a_damaged_normalisation_of_loader_json_is_refused(oxe_root: Path, tmp_path: Path, entry: Any) -> None:
    path = tmp_path / "loader.json"
    load(oxe_root, normalize="mean_std").save(path)
    content = json.loads(path.read_text())
    content["transforms"] = [entry]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"loader\.json: (field missing or of the wrong type|not a normalisation)"):
        load_loader(path)


CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"normalize": "q01_q99"}, {"normalize": "mean_std"}, "normalize: 'mean_std of .*' was 'q01_q99 of .*'"),
    ({"normalize": "q01_q99"}, {}, "normalize: None was 'q01_q99 of .*'"),
    ({"frames": {"size": (8, 8)}}, {"frames": {"size": (9, 8)}}, r"frames.size: \[9, 8\] was \[8, 8\]"),
    ({"frames": {"size": (8, 9)}}, {"frames": {"size": (8, 9), "fit": "pad"}}, "frames.fit: 'pad' was 'stretch'"),
    (
        {"frames": {"size": (8, 9), "filter": "lanczos"}},
        {"frames": {"size": (8, 9)}},
        "frames.filter: 'area' was 'lanczos'",
    ),
    ({"frames": {"cameras": ["primary"]}}, {}, r"frames.cameras: None was \['primary'\]"),
    (
        {"action": None, "state": None, "language": None},
        {},
        r"action: 'Vector\(...\)' was None; state: 'Vector\(...\)' was None; language: 'language' was None",
    ),
    ({"action": 3}, {"action": {"steps": 4, "start": 1}}, "action.steps: 4 was 3; action.start: 1 was 0"),
    ({}, {"state": 2}, "state.steps: 2 was None"),
    ({"action": 4}, {"action": {"steps": 4, "stride": 3}}, "action.stride: 3 was 1"),
    ({"action": {"steps": 4, "edges": "repeat"}}, {"action": 4}, "action.edges: 'mask' was 'repeat'"),
    ({}, {"columns": ["is_first"]}, r"columns: \['is_first'\] was \[\]"),
    ({"state": {"space": "eef", "on_unknown_units": "keep"}}, {}, "state.space: None was 'eef'"),
    ({"transforms": [Halve()]}, {}, r"transforms: \[\] was \['Halve'\]"),
]


@pytest.mark.parametrize(("before", "now", "message"), CHANGES)
def test_a_state_names_what_differs_in_the_content_of_batches(
    before: Any, now: Any, message: str, oxe_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = json.loads(json.dumps(load(oxe_root, "bridge", **before).state_at(3)))
    assert load(oxe_root, "bridge", **before).step_of(state) == 3
    assert not caplog.records
    assert load(oxe_root, "bridge", **now).step_of(state) == 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(f"but of other batches: {message}$", record.getMessage())


def test_a_state_names_what_differs_in_the_members_own_choices(
    oxe_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, same, now = (load(oxe_root, {"bridge": {"action": {"steps": steps}}, "kuka": 1}) for steps in (2, 2, 3))
    assert same.step_of(before.state_at(3)) == 3 and not caplog.records
    assert now.step_of(before.state_at(3)) == 3
    message = "members: {'bridge': {'action': {'steps': 3}}} was {'bridge': {'action': {'steps': 2}}}"
    assert caplog.records[0].getMessage().endswith(f"but of other batches: {message}")


def test_every_argument_that_defines_samples_is_of_their_order_or_of_their_content() -> None:
    order = {"seed", "shuffle", "samples_per_episode", "num_epochs", "select", "sample_weights"}
    no_effect = {"frames.decode", "frames.on_missing_camera"}
    only_which_datasets_load = {f"{name}.{field}" for name in VECTORS for field in ("on_unmapped", "on_unknown_units")}
    in_the_text_of_their_vector = {"action.slots", "state.slots"}
    names = {field.name for field in fields(SampleSpec)} - order
    for name, value in {"frames": Frames, "action": Vector, "state": Vector}.items():
        names |= {f"{name}.{field.name}" for field in fields(value)}
    never_on = {"action.dropout", "state.min_delay", "state.max_delay"}
    spec = SampleSpec(
        frames=Frames([-1, 0], size=(8, 8), history_dropout=0.1),
        action=Vector(4, min_delay=1, max_delay=2),
        state=Vector(dropout=0.1),
    )
    absent = no_effect | only_which_datasets_load | in_the_text_of_their_vector | never_on
    assert {*spec.content} == names - {"frames"} - absent


def test_a_normalisation_is_described_by_all_of_its_numbers(oxe_root: Path) -> None:
    normalize = Normalize(load(oxe_root), method="mean_std")
    texts = {normalize.describe(), Normalize(load(oxe_root), method="mean_std", clip=2.0).describe()}
    for key in ("action", "state"):
        for number in ("mean", "std"):
            content = normalize.to_json()
            content["statistics"][key]["kuka"][number][0] += 0.5
            texts.add(Normalize.from_json(content, context="a test").describe())
    assert len(texts) == 6
    assert Normalize.from_json(normalize.to_json(), context="a test").describe() == normalize.describe()


def test_what_changes_nothing_of_a_batch_is_not_named(oxe_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = load(oxe_root, normalize="q01_q99", on_error="replace", num_workers=1).state_at(3)
    changed = load(oxe_root, normalize={"method": "q01_q99"}, frames=Frames(fit="pad", filter="lanczos"), num_steps=9)
    assert changed.step_of(state) == 3
    assert not caplog.records


def test_data_that_were_labelled_again_are_named_where_batches_read_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("arm", "hand"):
        write_dataset(tmp_path, name, {"train": [[3, 2]]}, offset=1, size=(8, 8))

    def attach(values: list[float]) -> None:
        steps = {"episode": [0, 0, 0, 1, 1], "step": [0, 1, 2, 0, 1]}
        for name in ("arm", "hand"):
            table = pa.table({**steps, "value": values if name == "hand" else [1.0] * 5})
            stream.add_labels(tmp_path, name, table, split="train", overwrite=True)

    attach([1.0, 2.0, 3.0, 4.0, 5.0])
    reading, blind = load(tmp_path, "arm,hand", columns=["value"]), load(tmp_path, "arm,hand")
    reading.save(tmp_path / "loader.json")
    attach([1.0, 2.0, 3.0, 4.0, 6.0])
    assert load(tmp_path, "arm,hand").step_of(blind.state_at(3)) == 3
    assert not caplog.records
    assert load(tmp_path, "arm,hand", columns=["value"]).step_of(reading.state_at(3)) == 3
    load_loader(tmp_path / "loader.json")
    assert [record.getMessage().partition("batches")[2] for record in caplog.records] == [
        ": data of 'hand', which were converted or labelled again",
        " are not those of the run: data of 'hand', which were converted or labelled again",
    ]


def test_members_that_only_a_later_phase_draws_are_not_named(oxe_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = load(oxe_root, [(10, {"bridge": 1}), (None, {"kuka": 1})]).state_at(5)
    assert load(oxe_root, [(10, {"bridge": 1}), (None, {"rt1": 1})]).step_of(state) == 5
    assert not caplog.records


def test_a_state_whose_content_is_something_else_keeps_its_step(oxe_root: Path) -> None:
    loader = load(oxe_root, "bridge")
    contents: list[Any] = [None, 5, [], {"data": 5}, {"data": {"bridge": 5}, "frames": {"a": 1}}, {"x": 1}]
    for content in contents:
        assert loader.step_of({**loader.state_at(4), "content": content}) == 4
