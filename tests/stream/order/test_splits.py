import logging
import os
import time
from collections.abc import Mapping, Sequence

import pytest
from etils import epath
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorflow_datasets.core import naming
from tensorflow_datasets.core.splits import SplitDict, SplitInfo

from stream.order.splits import EpisodeRange, SplitError, resolve_split

SHARDS = {"train": [4, 3, 0, 3], "val": [5], "test-2": [1, 6]}
MISREAD = "TFDS would"
"""Part of every message, and of no other, that refuses an expression which TFDS misreads."""

logging.getLogger("absl").setLevel(logging.ERROR)  # TFDS warns of every empty split.

Episodes = list[tuple[str, int]]


def split_info(name: str, lengths: Sequence[int]) -> SplitInfo:
    template = naming.ShardedFileTemplate(
        data_dir=epath.Path("/data"), dataset_name="demo", filetype_suffix="tfrecord", split=name
    )
    return SplitInfo(name=name, shard_lengths=list(lengths), num_bytes=0, filename_template=template)


def read_by_tfds(expression: str, shards: Mapping[str, Sequence[int]]) -> Episodes | None:
    """Return split and number of each episode that TFDS reads, in its order; None if TFDS refuses."""
    splits = SplitDict([split_info(name, lengths) for name, lengths in shards.items()])
    first: dict[str, tuple[str, int]] = {}
    for name in splits:
        lengths = splits[name].shard_lengths
        for number, path in enumerate(splits[name].filepaths if lengths else []):
            first[os.fspath(path)] = name, sum(lengths[:number])
    try:
        files = splits[expression].file_instructions
    except (ValueError, NotImplementedError, KeyError, RecursionError):
        return None
    ranges = [(*first[file.filename], file.skip, file.take) for file in files]
    return [(name, start + skip + i) for name, start, skip, take in ranges for i in range(take)]


def read_here(expression: str, shards: Mapping[str, Sequence[int]]) -> Episodes:
    return [(part.split, i) for part in resolve_split(expression, shards) for i in range(part.start, part.stop)]


NUMBERS = st.one_of(
    st.integers(-12, 12).map(str),
    st.integers(0, 7).map(str),
    st.sampled_from(["25", "50", "-50", "12.5", "33.3", "99.9", "100", "100.1", "-100", "-101", "-0", "007"]),
    st.sampled_from(
        ["1_0", "1__0", "_1", "1_", ".5", "5.", ".", "_", "1.5.2", "-", "--1", "1e1", "٣", "²", "inf", "nan"]
    ),
)
# One unit for a slice: two different units are refused before anything else is checked.
BOUNDS = st.sampled_from(["", "", "", "%", "%", "shard", "shard", "shards", "Shard", "%%"]).flatmap(
    lambda unit: st.lists(NUMBERS.map(lambda number: number + unit) | NUMBERS | st.just(""), min_size=1, max_size=3)
)
SCRIBBLE = st.text(alphabet="train+[]:%-_.013 shard\n", max_size=20).map(lambda text: "train[" + text)
SLICES = st.one_of(st.just(""), BOUNDS.map(lambda bounds: f"[{':'.join(bounds)}]"))
NAMES = st.sampled_from(["train", "train", "train", "val", "test-2", "all", "Train", "tést", ""])
TERMS = st.builds(lambda name, slice_: name + slice_, NAMES, SLICES)
SUMS = st.builds(
    lambda terms, plus, end: plus.join(terms) + end,
    st.lists(TERMS, min_size=1, max_size=3),
    st.sampled_from(["+", "+", " + ", "\n+\t", "\u2003+\x1c", "++", " "]),
    st.sampled_from(["", "", "", "", "\n", " ", "\n\n", "\r\n", "+"]),
)
LENGTHS = st.lists(st.one_of(st.just(0), st.integers(0, 7), st.integers(1, 3)), max_size=5)
DATASETS = st.fixed_dictionaries({"train": LENGTHS}, optional={"val": LENGTHS, "test-2": LENGTHS})


@settings(max_examples=400)
@given(st.one_of(SUMS, TERMS, SCRIBBLE), DATASETS)
@example("train[5:5]", SHARDS)
@example("all\n", SHARDS)
@example("all+train[-1shard]", SHARDS)
def test_the_same_episodes_come_out_as_of_tfds_in_the_same_order(expression: str, shards: dict[str, list[int]]) -> None:
    expected = read_by_tfds(expression, shards)
    try:
        actual = read_here(expression, shards)
    except SplitError as error:
        assert expected is None or MISREAD in str(error), (expression, shards, expected)
    else:
        assert actual == expected


@settings(max_examples=150)
@given(st.data(), LENGTHS, st.sampled_from(["", "%", "shard"]), st.booleans(), st.booleans())
def test_a_slice_in_order_is_never_refused(
    data: st.DataObject, lengths: list[int], unit: str, left: bool, right: bool
) -> None:
    limit = {"": sum(lengths), "%": 100, "shard": len(lengths)}[unit]
    start, stop = sorted((data.draw(st.integers(0, limit)), data.draw(st.integers(0, limit))))
    if unit == "shard" and stop == 0:
        return  # TFDS reads it as no stop.
    if unit == "%":
        left = right = False  # Rounding from both sides can cross.
    ends = start - limit if left and start < limit else start, stop - limit if right and 0 < stop < limit else stop
    expression = f"train[{ends[0]}{unit}:{ends[1]}{unit}]"
    actual = read_here(expression, {"train": lengths})
    assert actual == read_by_tfds(expression, {"train": lengths})
    if unit != "%":
        numbers = range(start, stop) if unit == "" else range(sum(lengths[:start]), sum(lengths[:stop]))
        assert actual == [("train", i) for i in numbers]


@given(st.integers(1, 300), st.integers(-1000, 1000).map(lambda tenths: tenths / 10))
def test_per_cent_is_rounded_as_tfds_rounds_it(total: int, percent: float) -> None:
    for expression in (f"train[:{percent}%]", f"train[{percent}%:]"):
        if percent < 0 and round(percent * total / 100) == 0:
            with pytest.raises(SplitError, match="rounds to none, and TFDS would"):
                resolve_split(expression, {"train": [total]})
        else:
            assert read_here(expression, {"train": [total]}) == read_by_tfds(expression, {"train": [total]})


# Episodes that TFDS 4.9.10 reads of SHARDS; a TFDS without the misreading fails here.
@pytest.mark.parametrize(
    ("expression", "misread"),
    [
        ("train[3:2]", [("train", 3)]),  # to the end of the shard
        ("train[7:2]", []),
        ("train[60%:40%]", []),
        ("test-2[50%:-50%]", [("test-2", i) for i in (4, 5, 6)]),  # 3.5 of 7 is 4, and -3.5 is -4, which is 3
        ("train[3shard:1shard]", []),
        ("train[-4%:]", [("train", i) for i in range(10)]),
        ("train[:-5%]", []),
        ("train[1shard:50%]", [("train", i) for i in range(4, 10)]),  # 50 shards
        ("train[10%:2shard]", []),  # 2%, before the start
        ("train[:0shard]", [("train", i) for i in range(10)]),
        ("train[0shard:-0shard]", [("train", i) for i in range(10)]),
        ("train[:-6shard]", [("train", i) for i in range(7)]),  # -6 + 4 shards is -2, which is again from the end
        ("train[-7shard]", [("train", i) for i in range(7)]),
    ],
)
def test_what_tfds_reads_by_accident_is_refused_with_the_reason(expression: str, misread: Episodes) -> None:
    assert read_by_tfds(expression, SHARDS) == misread
    with pytest.raises(SplitError, match=MISREAD):
        resolve_split(expression, SHARDS)


def test_terms_stay_apart_in_their_order_even_where_they_are_empty_or_overlap() -> None:
    assert resolve_split("val[3:3] + train[8:]+train[-1:]+all", SHARDS) == [
        EpisodeRange("val", 3, 3),
        EpisodeRange("train", 8, 10),
        EpisodeRange("train", 9, 10),
        EpisodeRange("train", 0, 10),
        EpisodeRange("val", 0, 5),
        EpisodeRange("test-2", 0, 7),
    ]


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("Train", "split 'Train': no split 'Train', there are 'train', 'val', 'test-2'; did you mean 'train'?"),
        ("val + xyz[:3]", "term 2 of 2: no split 'xyz', there are 'train', 'val', 'test-2'"),
        ("all[:50%]", "slice each split"),
        ("train[:]", "expected one such as [10:]"),
        ("train[]", "found 'train[]', expected a split, or a slice"),
        (" train", "without spaces"),
        ("train[ :3]", "without spaces"),
        ("", "found '', expected a split"),
        ("train[3]", "write [a:b]"),
        ("train[:1.5]", "'1.5' is not a whole number"),
        ("train[:1__0%]", "'1__0' is not a number"),
        ("train[:100.5%]", "'100.5'% is outside of -100% to 100%"),
        ("train[:11]", "the split has 10 episodes"),
        ("train[-11:]", "the split has 10 episodes"),
        ("train[7:3]", "starts at episode 7 and stops before it at 3 (of 10)"),
        ("train[:-6shard]", "the split has 4 shards"),
    ],
)
def test_a_refusal_says_what_was_found_and_what_to_do(expression: str, says: str) -> None:
    with pytest.raises(SplitError) as caught:
        resolve_split(expression, SHARDS)
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["v1.0", "a+b", "train[:3]", "train\n", "all", ""])
def test_a_split_that_no_term_can_name_is_refused_and_so_is_all(name: str) -> None:
    for expression in (name, "all", "train[:1]+all"):
        with pytest.raises(SplitError):
            resolve_split(expression, {"train": [5], name: [5]})
    assert resolve_split("train[:1]", {"train": [5], name: [5]}) == [EpisodeRange("train", 0, 1)]


@pytest.mark.parametrize("name", ["val", "validation", "eval"])
def test_a_dataset_without_held_out_split_is_an_error_that_names_slices(name: str) -> None:
    with pytest.raises(SplitError, match=r"there are 'train', 'test'; .*'train\[:90%\]', validate on 'train\[90%:\]'$"):
        resolve_split(name, {"train": [5], "test": [5]})


def test_a_dataset_without_splits_is_refused() -> None:
    for expression in ("train", "all", "train[:1]"):
        with pytest.raises(SplitError, match=r"there are none|has no splits"):
            resolve_split(expression, {})


@pytest.mark.parametrize(
    "expression",
    [unit * length for length in (4_900, 1_000_000) for unit in ("a", " ", "+", "[", "a+", " +", "[:", "٣")]
    + [f"train[{'9' * length}{unit}:]" for length in (4_300, 9_900, 1_000_000) for unit in ("", "%")]
    + [f"train[:{unit * 4_900}]" for unit in ("1_", "_", "-", ":", "1.", "1:")]
    + [f"train[:{'9' * 1_000_000}shard]", "train" + " " * 9_900 + "x", "all" + "+all" * 2_000 + "+x"],
    ids=lambda expression: f"{expression[:9]!r}-{len(expression)}",
)  # fmt: skip
def test_a_hostile_expression_is_refused_at_once_in_few_words(expression: str) -> None:
    started = time.thread_time()
    with pytest.raises(SplitError) as caught:
        resolve_split(expression, SHARDS)
    assert time.thread_time() - started < 5
    assert len(str(caught.value)) < 500
