import functools
import gc
import hashlib
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream.base.errors import FormatError
from stream.format.manifest import Manifest, encode_manifest, read_manifest
from stream.format.names import TABLE_KINDS


def shard(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "source_file": f"demo-{name}.tfrecord",
        "source_bytes": 1000,
        "source_digest": "ab" * 32,
        "episodes": 2,
        "steps": 20,
        "records": 10,
        "paired_episodes": 2,
        "left_out": {"too_short": 1},
        "sizes": {"64x64": 20},
        "passed": 20,
        "file": {"bytes": 5, "sha256": "0f" * 32},
        **more,
    }


def statistics(dims: int) -> dict[str, Any]:
    numbers = dict.fromkeys(("mean", "std", "min", "max", "q01", "q99"), [0.5] * dims)
    return {"names": [f"x[{i}]" for i in range(dims)], "count": 20, "nonfinite": [0] * dims, **numbers}


def make_manifest() -> dict[str, Any]:
    shards = [shard("train-00000-of-00002"), shard("train-00001-of-00002")]
    columns = {"episode": "0f" * 8, "step": "1e" * 8}
    index = {kind: {"bytes": 5, "sha256": "0f" * 32, "columns": dict(columns)} for kind in TABLE_KINDS}
    return {
        "format_version": 2,
        "layout": "pairs",
        "dataset": "demo",
        "version": "1.0.0",
        "source": {
            "tfds_name": "demo_set",
            "version": "1.0.0",
            "path": "/data/demo_set/1.0.0",
            "fingerprint": "a1" * 32,
        },
        "parameters": {"offset": 5, "frame_offsets": [0, 5], "camera": "observation/image"},
        "spec": {"name": "demo"},
        "image": {"encoding": "jpeg", "sizes": {"64x64": 40}, "passed": 40, "transcoded": 0},
        "episodes": 4,
        "steps": 40,
        "records": 20,
        "left_out": {"too_short": 2},
        "quarantine": {"bytes": 200, "sha256": "1e" * 32},
        "splits": {"train": {"episodes": 4, "steps": 40, "records": 20, "shards": shards, "index": index}},
        "statistics": {"train": {"action": statistics(2)}},
        "versions": {"numpy": "2.4.6"},
    }


def write(folder: Path, content: Any) -> Path:
    """Write bytes unchanged, or an object with the right checksum."""
    path = folder / "dataset.json"
    path.write_bytes(content if isinstance(content, bytes) else sign(content))
    return path


def sign(content: dict[str, Any]) -> bytes:
    unsigned = json.dumps({**content, "checksum": "0" * 64}).encode()
    return unsigned.replace(b"0" * 64, hashlib.sha256(unsigned).hexdigest().encode())


def change(manifest: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set the field at a path of keys separated by slashes."""
    node, last = node_of(manifest, path)
    node[last] = value
    return manifest


def node_of(manifest: Any, path: str) -> tuple[Any, Any]:
    """Return the container of a field, and the key of the field in it."""
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    return functools.reduce(operator.getitem, parents, manifest), last


def test_what_is_written_is_what_was_read_from_its_folder_or_its_path(tmp_path: Path) -> None:
    manifest = read_manifest(write(tmp_path, make_manifest()))
    assert manifest == read_manifest(tmp_path)
    assert manifest.splits["train"].shards[1].name == "train-00001-of-00002"
    content = encode_manifest(manifest)
    encoded = read_manifest(write(tmp_path, content))
    assert encoded.model_copy(update={"checksum": manifest.checksum}) == manifest
    assert encode_manifest(encoded) == content


def test_a_manifest_in_which_any_byte_was_changed_or_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = sign(make_manifest())
    for position in range(0, len(content), 9):
        damaged = bytearray(content)
        damaged[position] ^= 1
        for refused in (bytes(damaged), content[:position]):
            write(tmp_path, refused)
            with pytest.raises(FormatError):
                read_manifest(tmp_path)


def test_a_missing_manifest_means_not_complete_and_an_edited_number_a_wrong_checksum(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"dataset\.json: no manifest, so this conversion is not complete"):
        read_manifest(tmp_path)
    write(tmp_path, sign(make_manifest()).replace(b'"passed": 40', b'"passed": 41'))
    with pytest.raises(FormatError, match=r"dataset\.json: its checksum is wrong, so it was changed or damaged"):
        read_manifest(tmp_path)


OTHER_VERSION = "format version {}, this program reads version 2; convert it again with"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(({"format_version": version, "a": "new"}, OTHER_VERSION.format(version)) for version in (0, 1, 3, None)),
        *((content, OTHER_VERSION.format(None)) for content in (b"[]", b"null", b"3", b'"text"', b"{}")),
        *((content, "not a JSON file") for content in (b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"9" * 10_000)),
        *((content, "not a JSON file") for content in (b'{"a":' * 100_000, b'{"format_version": 2, "x": 1e99999}x')),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_json_or_of_another_version_is_named_with_what_to_do(
    tmp_path: Path, content: Any, message: str
) -> None:
    write(tmp_path, content)
    with pytest.raises(FormatError, match=rf"dataset\.json: {message}"):
        read_manifest(tmp_path)
    assert gc.isenabled()


@pytest.mark.parametrize(
    "name", ["..", ".", "../up", "a/b", "/etc", "", "a\0b", "-rf", "x" * 201, "a\n", ".convert", 5, None]
)
@pytest.mark.parametrize("path", ["dataset", "version", "source/tfds_name", "splits/train/shards/0/name"])
def test_a_name_that_could_leave_its_folder_is_refused(tmp_path: Path, path: str, name: Any) -> None:
    if (path, name) == ("source/tfds_name", "a/b"):
        name = "a/b/c"  # the name of a dataset of TFDS and that of its configuration are right
    write(tmp_path, change(make_manifest(), path, name))
    with pytest.raises(FormatError, match=f"field {path.replace('/', '.')}: "):
        read_manifest(tmp_path)


def test_a_split_that_could_leave_its_folder_is_refused(tmp_path: Path) -> None:
    for name in ("..", "a/b", ""):
        manifest = make_manifest()
        manifest["splits"][name] = manifest["splits"].pop("train")
        write(tmp_path, manifest)
        with pytest.raises(FormatError, match="field splits"):
            read_manifest(tmp_path)


@pytest.mark.parametrize("value", [-1, -(2**70), 0.5, "many", None, [1], 1e300])
@pytest.mark.parametrize(
    "path",
    [
        *("episodes", "left_out/too_short", "splits/train/records", "splits/train/shards/0/steps"),
        *("splits/train/shards/1/sizes/64x64", "splits/train/shards/1/file/bytes", "splits/train/index/steps/bytes"),
        "statistics/train/action/count",
    ],
)
def test_a_count_below_zero_or_of_another_kind_is_refused(tmp_path: Path, path: str, value: Any) -> None:
    write(tmp_path, change(make_manifest(), path, value))
    with pytest.raises(FormatError, match=f"field {path.replace('/', '.')}: "):
        read_manifest(tmp_path)


@pytest.mark.parametrize("value", ["", "0f" * 31, "0F" * 32, "zz" * 32, "0f" * 32 + "\n", "0F" * 8])
@pytest.mark.parametrize("path", ["shards/0/file/sha256", "index/steps/sha256", "index/records/columns/step"])
def test_a_hash_that_is_none_is_refused(tmp_path: Path, path: str, value: str) -> None:
    write(tmp_path, change(make_manifest(), f"splits/train/{path}", value))
    with pytest.raises(FormatError, match=f"field splits.train.{path.replace('/', '.')}: String should match"):
        read_manifest(tmp_path)


def drop(path: str) -> Callable[[dict[str, Any]], Any]:
    def edit(manifest: dict[str, Any]) -> None:
        node, last = node_of(manifest, path)
        del node[last]

    return edit


INCONSISTENT: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda m: change(m, "episodes", 5), "the dataset says 5 episodes, its parts add up to 4"),
    (lambda m: change(m, "splits/train/steps", 41), "split train says 41 steps, its parts add up to 40"),
    (lambda m: change(m, "splits/train/shards/0/records", 9), "split train says 20 records, its parts add up to 19"),
    (
        lambda m: change(m, "splits/train/shards/0/name", "val-00000-of-00002"),
        "shard val-00000-of-00002 is listed under split train, where it does not belong",
    ),
    (
        lambda m: change(m, "splits/train/shards/0/name", "train-00001-of-00002"),
        "split train lists shard train-00001-of-00002 twice",
    ),
    (
        drop("splits/train/index/steps"),
        "splits.train.index: Value error, has the tables episodes, records, expected episodes, steps, records",
    ),
    (
        lambda m: change(m, "statistics/train/action/mean", [0.5]),
        "statistics of action in split train differ in length",
    ),
    (drop("source"), "field source: Field required"),
    (lambda m: change(m, "surprise", 1), "field surprise: Extra inputs are not permitted"),
    (lambda m: change(m, "layout", "windows"), "field layout: Input should be 'pairs' or 'frames'"),
    (
        lambda m: change(m, "splits/train/index/frames", {"bytes": 0, "sha256": "0f" * 32, "columns": {}}),
        "splits.train.index.frames",
    ),
]


@pytest.mark.parametrize(("edit", "message"), INCONSISTENT)
def test_fields_that_do_not_fit_each_other_are_named(
    tmp_path: Path, edit: Callable[[dict[str, Any]], Any], message: str
) -> None:
    manifest = make_manifest()
    edit(manifest)
    path = write(tmp_path, manifest)
    with pytest.raises(FormatError) as caught:
        read_manifest(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_long_value_is_cut_in_the_message(tmp_path: Path) -> None:
    write(tmp_path, change(make_manifest(), "splits", ["x" * 1000] * 1000))
    with pytest.raises(FormatError) as caught:
        read_manifest(tmp_path)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=5), child, max_size=3),
    max_leaves=8,
)
PLACES = [
    *("dataset", "source", "image", "parameters", "spec", "left_out", "statistics", "statistics/train/action/mean"),
    *("splits", "splits/train", "splits/train/shards", "splits/train/shards/0", "splits/train/index"),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), JSON)
def test_any_json_in_any_field_is_a_manifest_or_refused(tmp_path: Path, path: str, value: Any) -> None:
    write(tmp_path, change(make_manifest(), path, value))
    try:
        assert isinstance(read_manifest(tmp_path), Manifest)
    except FormatError as error:
        assert "dataset.json: " in str(error)
