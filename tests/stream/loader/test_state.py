from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stream import Loader, Select, make_loader
from stream.base.errors import StateError
from stream.loader.open_mixture import open_mixture
from stream.loader.sample_spec import SampleSpec
from stream.loader.state import make_state, read_json, read_state, write_json
from tests.stream.transforms import Jitter, Noise


@pytest.fixture
def bound(oxe_root: Path) -> dict[str, Any]:
    """Return the fingerprint of a loader of a real mixture."""
    options = SampleSpec(select=Select(where={"kuka": [("step", ">", 1)]}))
    data = open_mixture(oxe_root, {"bridge": 1, "kuka": 2.5, "rt1": "size"}, split="train", spec=options)
    return {"batch_size": 64, **data.fingerprint()}


def test_a_state_survives_json_and_is_small_for_all_datasets(bound: dict[str, Any], oxe_root: Path) -> None:
    for step in (0, 7, 10**15):
        state = json.loads(json.dumps(make_state(step, bound)))
        assert read_state(state, bound) == step
    data = open_mixture(oxe_root, "oxe29", split="train", spec=SampleSpec())
    assert len(json.dumps(make_state(10**9, data.fingerprint()))) < 10_000


def changed(bound: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    """Return a copy with one other value."""
    copy: dict[str, Any] = json.loads(json.dumps(bound))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("seed",), 1, "seed: 0 was 1"),
        (("shuffle",), "none", "shuffle: 'global' was 'none'"),
        (("samples_per_episode",), 2, "samples_per_episode: 0 was 2"),
        (("batch_size",), 32, "batch_size: 64 was 32"),
        (("num_epochs",), "complete epochs", "num_epochs: None was 'complete epochs'"),
        (("datasets", "bridge", "index"), 1, "position in the mixture: 0 was 1 (bridge)"),
        (("datasets", "bridge", "version"), "0.2.0", "version: '0.1.0' was '0.2.0' (bridge)"),
        (("datasets", "kuka", "split"), "train[:50%]", "split: 'train' was 'train[:50%]' (kuka)"),
        (("datasets", "kuka", "where"), None, """where: ["('step', '>', 1)"] was None (kuka)"""),
        (("datasets", "kuka", "sample_weights"), "w2", "sample_weights: None was 'w2' (kuka)"),
        (("phases", 0, "weights", "kuka"), 0.5, "weight of 'kuka' in phase 1 of the mixture: "),
        (("datasets", "rt1"), None, "mixture: 'rt1' is new"),
        (("datasets", "kuka", "data", "where"), "0" * 16, "data of 'kuka', which were converted or labelled again: "),
    ],
)
def test_a_state_of_another_order_is_described_by_arguments(
    bound: dict[str, Any], path: tuple[Any, ...], value: Any, message: str
) -> None:
    state = make_state(3, changed(bound, *path, value=value))
    with pytest.raises(StateError, match=re.escape(f"another order of samples: {message}")):
        read_state(state, bound)


def test_data_are_named_only_where_no_argument_of_their_dataset_differs(bound: dict[str, Any]) -> None:
    other_order = changed(bound, "datasets", "kuka", "data", "where", value="0" * 16)
    for member in ("bridge", "kuka", "rt1"):
        other_order = changed(other_order, "datasets", member, "split", value="test")
    with pytest.raises(StateError, match=r"samples: split: 'train' was 'test'\. Make the loader with the arguments"):
        read_state(make_state(3, other_order), bound)


def test_missing_and_further_datasets_are_named_and_few_of_many_differences(bound: dict[str, Any]) -> None:
    fewer = changed(bound, "datasets", value={k: v for k, v in bound["datasets"].items() if k != "rt1"})
    with pytest.raises(StateError, match="samples: mixture: 'rt1' is new"):
        read_state(make_state(3, fewer), bound)
    with pytest.raises(StateError, match="samples: mixture: 'rt1' is in the state only"):
        read_state(make_state(3, bound), fewer)
    with pytest.raises(StateError, match=r"num_epochs: .*; and \d+ more\. Make"):
        read_state(make_state(3, dict.fromkeys(bound, "x")), {**bound, "num_epochs": 2, "more": 1, "other": 2})


NO_STATES: list[Any] = [None, 5, [], "state", {}, {"step": 3}]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        *((state, "not a state") for state in NO_STATES),
        ({"version": 1, "step": 3, "fingerprint": {}}, "state of version 1, this program reads version 2"),
        ({"version": 2, "step": -1, "fingerprint": {}}, "step -1"),
        ({"version": 2, "step": True, "fingerprint": {}}, "step True"),
        ({"version": 2, "step": "3", "fingerprint": {}}, "step '3'"),
        ({"version": 2, "step": 3, "fingerprint": {}}, "batch_size: 64 was None"),
        ({"version": 2, "step": 3, "fingerprint": [1]}, "another order of samples"),
    ],
)
def test_what_is_no_state_is_refused(bound: dict[str, Any], state: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        read_state(state, bound)


def test_a_state_with_random_numbers_by_rank_continues_with_as_many_ranks(bound: dict[str, Any]) -> None:
    state = json.loads(json.dumps(make_state(3, bound, random_ranks=2)))
    assert read_state(state, bound, random_ranks=2) == 3
    message = r"of 2 ranks, this loader of 3, and a RandomMap draws .* by rank.*stream\.row_random"
    with pytest.raises(StateError, match=message):
        read_state(state, bound, random_ranks=3)

    assert read_state(make_state(3, bound, random_ranks=2), bound) == 3
    assert read_state(make_state(3, bound), bound, random_ranks=2) == 3


def test_a_loader_with_a_random_map_refuses_the_state_of_another_number_of_ranks(oxe_root: Path) -> None:
    def load(rank: int, ranks: int, transform: Any) -> Loader:
        return make_loader(oxe_root, "bridge", batch_size=4, transforms=[transform], rank=rank, world_size=ranks)

    alone, half = load(0, 1, Noise()), load(1, 2, Noise())
    with pytest.raises(StateError, match=r"of 1 ranks, this loader of 2, .*stream\.row_random"):
        iter(half).set_state(alone.state_at(5))
    assert load(0, 2, Noise()).step_of(half.state_at(5)) == 5
    assert load(0, 2, Jitter()).step_of(load(0, 1, Jitter()).state_at(5)) == 5


def test_a_file_is_written_atomically_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "loader.json"
    for number in (1, 2):
        content = {"format": "stream-loader", "version": 2, "number": number}
        write_json(path, content)
        assert read_json(path) == content
    assert [entry.name for entry in path.parent.iterdir()] == ["loader.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, "not a JSON file") for content in (b"", b"{", b"\xff\xfe", b"[" * 200_000)),
        (b"[]", "not a loader.json"),
        (b'{"format": "other", "version": 1}', "not a loader.json"),
        (b'{"format": "stream-loader"}', "version None, this program reads version 2"),
        (b'{"format": "stream-loader", "version": 1}', "version 1, this program reads version 2"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "loader.json"
    path.write_bytes(content)
    with pytest.raises(StateError, match=rf"loader\.json: {message}"):
        read_json(path)


def test_a_missing_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"cannot be read .No such file"):
        read_json(tmp_path / "loader.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(StateError, match="larger than 1,073,741,824 bytes"):
        read_json(tmp_path / "huge.json")
