import json
import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import example, given
from hypothesis import strategies as st

from convert.errors import SourceError, UsageError
from convert.source.protocol import shard_spans
from convert.source.rlds.dataset import RldsSource, find_dataset
from convert.verify.command import verify_root
from tests.fixtures.datasets.rlds_dataset import RldsDataset, convert_dataset, demo_episode, write_dataset

LENGTHS = {"train": (4, 0, 3, 3), "val": (2,), "test": ()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    splits = {split: [[demo_episode(1)] * count for count in lengths] for split, lengths in LENGTHS.items()}
    return write_dataset(tmp_path_factory.mktemp("source"), splits=splits)


@pytest.fixture(scope="module")
def source(written: RldsDataset) -> RldsSource:
    return find_dataset([str(written.root)], "demo", "1.0.0")


@pytest.fixture
def copied(written: RldsDataset, tmp_path: Path) -> RldsDataset:
    """The same dataset in a folder where a test may break it."""
    shutil.copytree(written.root, tmp_path, dirs_exist_ok=True)
    return RldsDataset(tmp_path, "demo")


def find(dataset: RldsDataset) -> RldsSource:
    return find_dataset([str(dataset.root)], "demo", "1.0.0")


def edit_info(dataset: RldsDataset, **changes: Any) -> None:
    path = dataset.path / "dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_split(dataset: RldsDataset, **changes: Any) -> None:
    first, *others = json.loads((dataset.path / "dataset_info.json").read_text())["splits"]
    edit_info(dataset, splits=[{**first, **changes}, *others])


def test_the_first_root_that_has_it_wins(written: RldsDataset, copied: RldsDataset, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for roots in ([empty, copied.root, written.root], [tmp_path / "missing", copied.root]):
        assert find_dataset([str(root) for root in roots], "demo", "1.0.0").path == str(copied.path)


def test_the_fingerprint_changes_with_the_metadata_only(copied: RldsDataset) -> None:
    before = find(copied).fingerprint
    copied.shard(count=4).write_bytes(b"")
    assert find(copied).fingerprint == before
    edit_info(copied, description="another")
    assert find(copied).fingerprint != before


def test_shards_are_listed_in_order_with_their_sizes(source: RldsSource, written: RldsDataset) -> None:
    shards = source.shards("train")
    assert [(shard.index, shard.count) for shard in shards] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert tuple(shard.records for shard in shards) == LENGTHS["train"]
    for shard in shards:
        path = written.shard("train", shard.index, count=4)
        assert (shard.path, shard.name, shard.bytes) == (str(path), path.name, path.stat().st_size)


def test_missing_shard_files_are_counted_and_named(copied: RldsDataset) -> None:
    for index in (0, 2):
        copied.shard("train", index, count=4).unlink()
    with pytest.raises(SourceError) as caught:
        find(copied).shards("train")
    assert str(caught.value) == (
        f"{copied.path}: 2 of 4 files of split train are missing: demo-train.tfrecord-00000-of-00004, "
        "demo-train.tfrecord-00002-of-00004; copy them, or leave the split out with --episodes"
    )
    assert len(find(copied).shards("val")) == 1


def test_an_unknown_dataset_lists_the_closest_folders(written: RldsDataset) -> None:
    message = r"dataset dmeo 1\.0\.0 is in none of the sources: tried .*did you mean 'demo'\?"
    with pytest.raises(SourceError, match=message):
        find_dataset([str(written.root)], "dmeo", "1.0.0")


def test_another_version_lists_those_that_are_there(copied: RldsDataset) -> None:
    shutil.copytree(copied.path, copied.path.parent / "0.9.0")
    (copied.path.parent / "captions").mkdir()
    with pytest.raises(SourceError, match=r"has version 0\.9\.0, 1\.0\.0, not 2\.0\.0; give the right version"):
        find_dataset([str(copied.root)], "demo", "2.0.0")


def test_a_source_that_is_not_there_is_named_and_an_empty_one_has_no_hint(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no such source: .*/nowhere \(looked for demo/1\.0\.0 below it\)"):
        find_dataset([str(tmp_path / "nowhere")], "demo", "1.0.0")
    with pytest.raises(SourceError, match=r"tried .*/demo/1\.0\.0$"):
        find_dataset([str(tmp_path)], "demo", "1.0.0")


def test_a_copy_without_features_is_incomplete(copied: RldsDataset) -> None:
    (copied.path / "features.json").unlink()
    with pytest.raises(SourceError, match=r"has dataset_info\.json but no features\.json"):
        find(copied)


@pytest.mark.parametrize("form", ["pythonClassName", "type"])
def test_a_class_of_a_feature_is_not_imported(copied: RldsDataset, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """TFDS would import the module, from the working folder too, and so run what it holds."""
    (copied.path / "evil_module.py").write_text(f"open({str(copied.path / 'ran')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(copied.path))
    tree = json.loads((copied.path / "features.json").read_text())
    tree["featuresDict"]["features"]["evil"] = {form: "evil_module.Feature", "content": {}}
    (copied.path / "features.json").write_text(json.dumps(tree))
    message = r"features\.json has a feature of the class 'evil_module\.Feature', which is not one of TFDS's"
    with pytest.raises(SourceError, match=message):
        find(copied)
    assert "evil_module" not in sys.modules and not (copied.path / "ran").exists()


@pytest.mark.parametrize(
    "template", ["../../{SPLIT}-{SHARD_X_OF_Y}", "/etc/{SPLIT}-{SHARD_X_OF_Y}", "a/{SHARD_X_OF_Y}"]
)
def test_files_outside_of_the_dataset_are_not_opened(copied: RldsDataset, template: str) -> None:
    edit_split(copied, filepathTemplate=template)
    with pytest.raises(SourceError):
        result = find(copied)
        for split in result.splits:
            result.shards(split)


def test_the_name_of_a_dataset_does_not_lead_outside(copied: RldsDataset) -> None:
    edit_info(copied, name="../../../etc/demo")
    assert {Path(shard.path).parent for shard in find(copied).shards("train")} == {copied.path}


@pytest.mark.parametrize("name", ["../train", "/train", "..", "tr/ain", "", 5, "a" * 300])
def test_a_split_that_cannot_be_a_folder_is_refused(copied: RldsDataset, name: Any) -> None:
    edit_split(copied, name=name)
    with pytest.raises(SourceError, match=r"has a split .*; splits become folders|TFDS cannot read its metadata"):
        find(copied)


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, "not a JSON file") for content in (b"", b"[" * 10**6, b'{"a":' * 10**6, b"\xff\xfe")),
        (b'{"a": 1' + b"0" * 10**5 + b"}", "not a JSON file"),
        *((content, "TFDS cannot read|not an RLDS") for content in (b"[]", b'{"a": 1}', b"null")),
    ],
)
def test_metadata_that_cannot_be_read_are_refused(copied: RldsDataset, name: str, content: bytes, message: str) -> None:
    (copied.path / name).write_bytes(content)
    with pytest.raises(SourceError, match=rf"{copied.path}.*({message})"):
        find(copied)


def test_metadata_larger_than_any_are_not_read(copied: RldsDataset) -> None:
    os.truncate(copied.path / "features.json", 10**12)
    with pytest.raises(SourceError, match=r"features\.json: not a JSON file .larger than"):
        find(copied)


def test_a_dataset_that_is_not_rlds_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, features={"label": np.int64}, splits={"train": [[{"label": 1}]]})
    with pytest.raises(SourceError, match=r"demo/1\.0\.0: features\.json has no 'steps'"):
        find_dataset([str(tmp_path)], "demo", "1.0.0")


def test_a_configuration_is_a_folder_between_name_and_version(tmp_path: Path) -> None:
    for config in ("front", "wrist"):
        dataset = write_dataset(tmp_path, splits={"train": [[demo_episode(4)]]}, config=config)
    assert convert_dataset(dataset.conversion(tmp_path / "out")).source.tfds_name == "demo/wrist"
    assert verify_root(tmp_path / "out", jobs=1).ok
    with pytest.raises(SourceError, match=r"configurations front, wrist; .*tfds_name: demo/front"):
        find_dataset([str(tmp_path)], "demo", "1.0.0")


def test_files_of_another_kind_are_refused_and_without_a_kind_they_are_tfrecord(copied: RldsDataset) -> None:
    edit_info(copied, fileFormat="riegeli")
    with pytest.raises(SourceError, match=r"its files are riegeli, only tfrecord and array_record can be converted"):
        find(copied)
    edit_info(copied, fileFormat=None)
    assert find(copied).splits == LENGTHS


def test_all_splits_that_have_episodes_are_converted_unless_some_are_named(source: RldsSource) -> None:
    assert source.select_splits(None) == ["train", "val"]
    assert source.select_splits(["val"]) == ["val"]
    with pytest.raises(UsageError, match=r"no split 'vall'; did you mean 'val'\?"):
        source.select_splits(["train", "vall"])
    with pytest.raises(SourceError, match="split 'test' has no episodes"):
        source.select_splits(["test"])


def test_a_dataset_without_any_episode_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, splits={"train": [[], []], "val": []})
    with pytest.raises(SourceError, match=r"no split has any episode \(splits: train: 0 episodes, val: 0 episodes\)"):
        find_dataset([str(tmp_path)], "demo", "1.0.0").select_splits(None)


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("train", {"train": {0: ((0, 4),), 2: ((0, 3),), 3: ((0, 3),)}}),
        ("train[:5]", {"train": {0: ((0, 4),), 2: ((0, 1),)}}),
        ("train[-2:]", {"train": {3: ((1, 3),)}}),
        ("train[30%:50%]", {"train": {0: ((3, 4),), 2: ((0, 1),)}}),
        ("train[:2]+train[6:8]+val", {"train": {0: ((0, 2),), 2: ((2, 3),), 3: ((0, 1),)}, "val": {0: ((0, 2),)}}),
        ("train[2:4]+train[:3]", {"train": {0: ((0, 4),)}}),
        ("train[:1]+train[2:3]", {"train": {0: ((0, 1), (2, 3))}}),
        ("train + train", {"train": {0: ((0, 4),), 2: ((0, 3),), 3: ((0, 3),)}}),
        ("all", {"train": {0: ((0, 4),), 2: ((0, 3),), 3: ((0, 3),)}, "val": {0: ((0, 2),)}}),
    ],
)
def test_episodes_are_chosen_in_the_grammar_of_tfds(source: RldsSource, expression: str, chosen: Any) -> None:
    assert source.select_episodes(expression) == chosen


@pytest.mark.parametrize("expression", ["train[3:2]", "train[0:0]", "train[10:]", "train[9:-9]", "test", "val[:0%]"])
def test_a_range_that_leaves_nothing_says_how_many_episodes_there_are(source: RldsSource, expression: str) -> None:
    with pytest.raises(UsageError, match="leaves nothing of test: 0 episodes, train: 10 episodes, val: 2 episodes"):
        source.select_episodes(expression)


@pytest.mark.parametrize(
    "expression",
    ["", "train[", "train[a:b]", "train[5]", "train[:200%]", "nope", "train+nope", "all[:3]", "+", "train[:99]"],
)
def test_what_is_not_in_the_grammar_is_refused_with_the_splits(source: RldsSource, expression: str) -> None:
    message = (
        r"episodes .*: .* \(splits: test: 0 episodes, train: 10 episodes, val: 2 episodes\); write .*; "
        r"a list of episodes is a file that ends in \.json$"
    )
    with pytest.raises(UsageError, match=message):
        source.select_episodes(expression)


BOUND = st.one_of(st.just(""), st.integers(-12, 12).map(str), st.integers(-120, 120).map("{}%".format))


@given(st.lists(st.tuples(st.sampled_from(["train", "val"]), BOUND, BOUND), min_size=1, max_size=3))
@example([("train", "3", "2")])
@example([("train", "0", "0"), ("val", "", "")])
def test_the_chosen_episodes_are_those_that_tfds_numbers(source: RldsSource, terms: list[tuple[str, str, str]]) -> None:
    expression = "+".join(f"{split}[{start}:{stop}]" for split, start, stop in terms)
    try:
        chosen = source.select_episodes(expression)
    except UsageError:
        return
    absolute = tfds.core.ReadInstruction.from_spec(expression).to_absolute(source._info.splits)
    for split, lengths in (("train", LENGTHS["train"]), ("val", LENGTHS["val"])):
        is_expected = np.zeros(sum(lengths), bool)
        for part in absolute:
            if part.splitname == split:
                is_expected[part.from_ : part.to] = True
        is_chosen = [np.zeros(length, bool) for length in lengths]
        for index, spans in chosen.get(split, {}).items():
            for span in spans:
                is_chosen[index][slice(*span)] = True
        np.testing.assert_array_equal(np.concatenate(is_chosen), is_expected)


@given(st.text(max_size=30) | st.from_regex(r"(train|val|al+)\[[0-9%:+-]{0,8}\]?(\+.*)?", fullmatch=True))
def test_any_text_is_an_expression_or_refused(source: RldsSource, expression: str) -> None:
    try:
        assert source.select_episodes(expression)
    except UsageError as error:
        assert "episodes" in str(error)


BOUNDS = st.none() | st.integers(-40, 40)


@given(st.lists(st.integers(0, 9), max_size=6), st.lists(st.builds(slice, BOUNDS, BOUNDS), max_size=3))
def test_the_spans_of_shards_are_the_slices_of_the_split(lengths: list[int], slices: list[slice]) -> None:
    numbers = [(shard, position) for shard, length in enumerate(lengths) for position in range(length)]
    result = shard_spans(lengths, slices)
    positions = [(shard, position) for shard, spans in result.items() for span in spans for position in range(*span)]
    assert positions == sorted({number for chosen in slices for number in numbers[chosen]})
    assert all(first[1] < second[0] for spans in result.values() for first, second in pairwise(spans))
