import re
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_datasets.proto import tf_example_pb2

from convert.errors import MalformedEpisode
from convert.shard.language import decode_codes
from convert.source.episode import Column, Episode
from convert.source.features import Feature
from convert.source.rlds.metadata import flatten_features
from convert.source.rlds.parser import EpisodeParser, decode_texts
from tests.convert.source.rlds.test_example import delimited
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, demo_features, serialise, write_dataset
from tests.fixtures.leaf_kinds import EPISODES, FEATURES, STEP_LEAVES, WRITE_ONLY_LEAVES, make_features

LEAVES = {
    feature.path: feature
    for feature in flatten_features(tfds.features.FeaturesDict(FEATURES), context="test").values()
    if feature.path not in ("steps/observation/image", "steps/observation/raw")
}

RECORD = serialise(FEATURES, EPISODES[0])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    records = [serialise(FEATURES, episode) for episode in EPISODES]
    return write_dataset(
        tmp_path_factory.mktemp("source"), features=make_features(STEP_LEAVES), splits={"train": [records]}
    )


@pytest.fixture(scope="module")
def reference(dataset: RldsDataset) -> list[dict[str, Any]]:
    return dataset.read_episodes()


@pytest.fixture(scope="module")
def parsed() -> list[Episode]:
    parser = EpisodeParser([camera("image")], LEAVES.values())
    return [parser.parse(serialise(FEATURES, episode)) for episode in EPISODES]


def camera(name: str) -> Feature:
    return flatten_features(tfds.features.FeaturesDict(FEATURES), context="test")[f"steps/observation/{name}"]


def nested(column: Column) -> Any:
    """Return the values of a column as nested lists: by row, by item of each sequence, by the feature's shape."""
    assert column.values is not None
    flat = np.array(column.values, dtype=object if column.feature.dtype == "string" else None)
    items = flat.reshape(-1, *(dim or 0 for dim in column.feature.shape)).tolist()
    for lengths in reversed(column.lengths):
        assert lengths.sum() == len(items)
        ends = np.cumsum(lengths)
        items = [items[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    assert len(items) == column.rows
    return items if column.feature.level == "step" else items[0]


def look_up(tree: Mapping[str, Any], path: str) -> Any:
    """Return the value at a flattened path, in a tree whose keys may contain slashes."""
    for key, child in tree.items():
        if path == key:
            return child
        if path.startswith(f"{key}/") and isinstance(child, dict):
            return look_up(child, path.removeprefix(f"{key}/"))
    raise KeyError(path)


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(child) for child in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return value.rstrip(b"\0").decode() if isinstance(value, bytes) else value


READABLE = [path for path in LEAVES if path.split("/")[1] not in WRITE_ONLY_LEAVES or path.startswith("episode")]


@pytest.mark.parametrize("path", READABLE)
def test_every_kind_of_leaf_is_read_as_tfds_decodes_it(
    path: str, parsed: list[Episode], reference: list[dict[str, Any]]
) -> None:
    feature = LEAVES[path]
    for actual, expected in zip(parsed, reference, strict=True):
        if feature.level == "step":
            assert nested(actual.steps[feature.name]) == [
                plain(look_up(step, feature.name)) for step in expected["steps"]
            ]
        else:
            assert nested(actual.episode[feature.name]) == plain(look_up(expected, path))


def test_sequences_of_fixed_length_are_read_as_they_were_given(parsed: list[Episode]) -> None:
    for actual, converted in zip(parsed, EPISODES, strict=True):
        for name in ("fixed", "fixed_deep"):
            assert nested(actual.steps[name]) == [step[name] for step in converted["steps"]]
        names = [[entry["name"] for entry in step["fixed_objects"]] for step in converted["steps"]]
        assert nested(actual.steps["fixed_objects/name"]) == names


def test_encoded_frames_are_the_stored_bytes(parsed: list[Episode]) -> None:
    for actual, converted in zip(parsed, EPISODES, strict=True):
        assert list(actual.frames) == [step["observation"]["image"] for step in converted["steps"]]
        assert actual.num_steps == len(converted["steps"])


def test_raw_frames_are_the_pixels_that_tfds_decodes(reference: list[dict[str, Any]]) -> None:
    parser = EpisodeParser([camera("raw")], ())
    for converted, expected in zip(EPISODES, reference, strict=True):
        frames = list(parser.parse(serialise(FEATURES, converted)).frames)
        assert len(frames) == len(expected["steps"])
        for frame, step in zip(frames, expected["steps"], strict=True):
            assert isinstance(frame, np.ndarray)
            assert frame.dtype == np.uint8
            np.testing.assert_array_equal(frame, step["observation"]["raw"])


DEMO_FEATURES = flatten_features(tfds.features.FeaturesDict(demo_features()), context="test")
DEMO_PARSER = EpisodeParser(
    [DEMO_FEATURES["steps/observation/image"]],
    [feature for feature in DEMO_FEATURES.values() if feature.kind != "image"],
)


def changed(record: bytes, key: str, kind: str, values: Any) -> bytes:
    """A record with other values of one feature, without the feature for None."""
    example = tf_example_pb2.Example.FromString(record)
    if values is None:
        del example.features.feature[key]
    else:
        getattr(example.features.feature[key], kind).value[:] = values
    content: bytes = example.SerializeToString()
    return content


def demo(key: str, kind: str = "", values: Any = None) -> bytes:
    return changed(serialise(demo_features(), demo_episode(4)), key, kind, values)


def test_a_feature_that_the_record_lacks_is_absent() -> None:
    column = DEMO_PARSER.parse(demo("steps/action")).steps["action"]
    assert (column.values, column.rows) == (None, 4)
    column = DEMO_PARSER.parse(demo("episode_metadata/file_path")).episode["episode_metadata/file_path"]
    assert (column.values, column.rows) == (None, 1)


@pytest.mark.parametrize("path", [path for path, feature in LEAVES.items() if feature.sequences])
def test_a_sequence_that_the_record_lacks_is_absent_with_empty_rows(path: str) -> None:
    feature = LEAVES[path]
    record = RECORD
    for key in [key for key in tf_example_pb2.Example.FromString(RECORD).features.feature if key.startswith(path)]:
        record = changed(record, key, "", None)
    episode = EpisodeParser([camera("image")], [feature]).parse(record)
    (column,) = [*episode.steps.values(), *episode.episode.values()]
    assert column.values is None
    assert [len(lengths) for lengths in column.lengths] == [column.rows] + [0] * (len(feature.sequences) - 1)


def test_a_record_with_an_empty_list_of_frames_is_an_empty_episode() -> None:
    example = tf_example_pb2.Example.FromString(serialise(demo_features(), demo_episode(4)))
    for key, feature in example.features.feature.items():
        if key.startswith("steps/"):
            feature.Clear()
    assert DEMO_PARSER.parse(example.SerializeToString()).num_steps == 0


def test_flags_do_not_decide_the_number_of_steps() -> None:
    assert DEMO_PARSER.parse(demo("steps/is_last", "int64_list", [0, 0, 0, 0])).num_steps == 4


@pytest.mark.parametrize(
    ("key", "kind", "values", "message"),
    [
        ("observation/image", "", None, "the record has no steps/observation/image"),
        ("action", "float_list", [0] * 7, "steps/action: -1 values of shape (2,) for 4 steps"),
        ("observation/state", "float_list", [0] * 9, "steps/observation/state: 3 values of shape (3,) for 4 steps"),
        ("language_instruction", "bytes_list", [b"a"] * 5, "instruction: 5 values of shape () for 4 steps"),
        ("observation/image", "bytes_list", [b"x"] * 3, "steps/action: 4 values of shape (2,) for 3 steps"),
        ("/episode_metadata/file_path", "bytes_list", [b"x"] * 2, "file_path: 2 values of shape () for 1 values"),
        ("is_last", "float_list", [0, 0, 0, 1], "steps/is_last: expected bool, found floats"),
        ("action", "bytes_list", [b"zz"], "steps/action: expected float32, found bytes; is it encoded (zlib)?"),
        ("language_instruction", "int64_list", [1] * 4, "instruction: 0 values of shape () for 4 steps"),
        ("observation/image", "int64_list", [1] * 4, "image: expected encoded images, found numbers"),
    ],
)
def test_a_feature_that_does_not_fit_is_named_with_what_was_found_and_expected(
    key: str, kind: str, values: Any, message: str
) -> None:
    with pytest.raises(MalformedEpisode, match=re.escape(message)):
        DEMO_PARSER.parse(demo(key[1:] if key.startswith("/") else f"steps/{key}", kind, values))


@pytest.mark.parametrize(
    ("path", "part", "values", "message"),
    [
        ("steps/uint8", "", [0, 256, 1], "steps/uint8: values 0 to 256 do not fit uint8"),
        ("steps/int32", "", [-(2**40), 0, 1], "do not fit int32"),
        ("steps/zlib", "", [b"not zlib"] * 3, "a stored tensor does not inflate"),
        ("steps/zlib", "", [b""] * 3, "a stored tensor has 0 bytes, (2, 3) of float32 takes 24"),
        ("steps/bytes", "", [b"123"] * 3, "a stored tensor has 3 bytes, (2,) of int16 takes 4"),
        ("steps/numbers", "lengths_0", [0, 0], "steps/numbers: level 0 has 2 row lengths, expected 3 of 0 or more"),
        ("steps/numbers", "lengths_0", [9, 9, 9], "values of shape () for 27 steps"),
        ("steps/numbers", "lengths_0", [2, -1, 2], "expected 3 of 0 or more"),
        ("steps/numbers", "lengths_0", [2**62, 2**62, 2**63 - 1], "expected 3 of 0 or more"),
        ("steps/two_deep", "lengths_1", [1] * 50, "level 1 has 50 row lengths"),
        ("episode_metadata/two_deep", "lengths_0", [7], "two_deep: 0 values of shape () for 7 values"),
    ],
)
def test_stored_values_that_do_not_fit_their_declaration_are_refused(
    path: str, part: str, values: list[Any], message: str
) -> None:
    kind = "bytes_list" if isinstance(values[0], bytes) else "int64_list"
    record = changed(RECORD, f"{path}/ragged_row_{part}" if part else path, kind, values)
    with pytest.raises(MalformedEpisode, match=re.escape(message)):
        EpisodeParser([camera("image")], [LEAVES[path]]).parse(record)


def test_a_zlib_bomb_is_not_inflated_beyond_the_declared_size() -> None:
    bomb = zlib.compress(bytes(1 << 26))
    record = changed(RECORD, "steps/zlib", "bytes_list", [bomb] * 3)
    parser = EpisodeParser([camera("image")], [LEAVES["steps/zlib"]])
    tracemalloc.start()
    with pytest.raises(MalformedEpisode, match=r"a stored tensor has more than 24 bytes, \(2, 3\) of float32 takes 24"):
        parser.parse(record)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


def test_unknown_fields_of_a_newer_writer_are_passed_over() -> None:
    vector = np.arange(9, dtype="<f4").tobytes()
    unknown = b"\x7a\x03abc"

    entry = delimited(1, b"steps/vector") + delimited(2, delimited(2, delimited(1, vector) + unknown))
    frames = delimited(1, b"steps/observation/image") + delimited(2, delimited(1, delimited(1, b"x") * 3))
    record = delimited(1, delimited(1, entry) + delimited(1, frames))
    values = EpisodeParser([camera("image")], [LEAVES["steps/vector"]]).parse(record).steps["vector"].values
    np.testing.assert_array_equal(np.asarray(values), np.arange(9))


def test_a_tensor_without_fixed_shape_is_refused_with_what_to_do() -> None:
    feature = Feature(path="steps/vector", kind="tensor", level="step", shape=(None,), dtype="float32")
    with pytest.raises(MalformedEpisode, match=r"shape \(None,\) is not fixed; list it under leave_out"):
        EpisodeParser([camera("image")], [feature]).parse(RECORD)


PARSERS = [EpisodeParser([camera(name)], LEAVES.values()) for name in ("image", "raw")]


def parse_or_refuse(record: bytes) -> None:
    for parser in PARSERS:
        try:
            episode = parser.parse(record)
            assert sum(1 for _ in episode.frames) == episode.num_steps
        except MalformedEpisode as error:
            assert str(error)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_an_episode_or_malformed(record: bytes) -> None:
    parse_or_refuse(record)


@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8), st.floats(0, 1)
)
def test_a_damaged_record_is_an_episode_or_malformed(changes: list[tuple[float, int]], kept: float) -> None:
    record = bytearray(RECORD)
    for position, value in changes:
        record[int(position * len(record))] = value
    parse_or_refuse(bytes(record[: int(kept * len(record))]))


NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)
PROTOS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.lists(st.binary(max_size=8), max_size=5).map(lambda values: {"bytes_list": {"value": values}}),
    st.lists(st.floats(width=32), max_size=5).map(lambda values: {"float_list": {"value": values}}),
    NUMBERS.map(lambda values: {"int64_list": {"value": values}}),
    st.just({}),
)
KEYS = [
    "steps/observation/image",
    "steps/observation/raw",
    *LEAVES,
    *(f"{path}/ragged_{part}" for path in LEAVES for part in ("flat_values", "row_lengths_0", "row_lengths_1")),
]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@given(st.dictionaries(st.sampled_from(KEYS), PROTOS, max_size=12))
def test_any_example_is_an_episode_or_malformed(features: dict[str, Any]) -> None:
    parse_or_refuse(tf_example_pb2.Example(features={"feature": features}).SerializeToString())


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
def test_texts_come_back_without_their_padding(texts: list[str]) -> None:
    assert decode_texts([text.encode() + b"\0" * (index % 3) for index, text in enumerate(texts)]) == texts


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    assert decode_texts([b"caf\xe9"]) == ["caf\ufffd"]


def test_codes_end_at_the_first_zero() -> None:
    assert decode_codes(np.array([104, 105, 0, 120, 121], np.int32)) == "hi"


def test_reading_does_not_import_tensorflow(dataset: RldsDataset) -> None:
    script = (
        "import sys\n"
        "from convert.source.rlds.parser import EpisodeParser\nfrom convert.source.rlds.dataset import find_dataset\n"
        "from convert.source.rlds.record_files import TFRecordFile\n"
        f"source = find_dataset([{str(dataset.root)!r}], 'demo', '1.0.0')\n"
        "shard = source.shards('train')[0]\n"
        "kept = [feature for feature in source.features.values() if feature.kind == 'tensor']\n"
        "parser = EpisodeParser([source.features['steps/observation/image']], kept)\n"
        "records = TFRecordFile(open(shard.path, 'rb'), name=shard.name, size=shard.bytes)\n"
        "print([parser.parse(record).num_steps for record in records], 'tensorflow' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[3, 0, 1, 5] False\n"
