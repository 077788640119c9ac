"""The instruction of each step, from features of the steps or of the episode."""

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convert.shard.language import step_language
from convert.source.episode import Column, Episode
from convert.source.features import Feature

CODES = 24


def column(path: str, values: Any, rows: int, *, lengths: Any = (), **fields: Any) -> Column:
    level: Any = "step" if path.startswith("steps/") else "episode"
    feature = Feature(path=path, kind="tensor", level=level, **{"shape": (), "dtype": "string", **fields})
    return Column(feature=feature, values=values, lengths=lengths, rows=rows)


def texts(*values: str, path: str = "steps/text") -> Column:
    return column(path, list(values), len(values))


def codes(*values: str, path: str = "steps/codes", dtype: str = "int32") -> Column:
    coded = np.frombuffer(b"".join(value.encode().ljust(CODES, b"\0") for value in values), np.uint8)
    return column(path, coded.astype(dtype), len(values), shape=(CODES,), dtype=dtype)


def language(*columns: Column, steps: int, encoding: Literal["text", "utf8_codes"] = "text") -> list[str]:
    """Return the instructions of an episode with these columns, the first before the others."""
    of_steps = {item.feature.name: item for item in columns if item.feature.level == "step"}
    of_episode = {item.feature.name: item for item in columns if item.feature.level == "episode"}
    episode = Episode(num_steps=steps, steps=of_steps, episode=of_episode, cameras=[])
    return step_language(episode, [item.feature for item in columns], encoding=encoding)


def test_the_instruction_of_each_step_is_taken() -> None:
    assert language(texts("open", "close", ""), steps=3) == ["open", "close", ""]


def test_the_instruction_of_an_episode_is_that_of_all_its_steps() -> None:
    assert language(texts("tidy up", path="text"), steps=3) == ["tidy up"] * 3


def test_an_alternative_stands_in_where_the_first_is_empty() -> None:
    first, second = texts("", "push", "", ""), texts("look", "no", "see", "", path="steps/seen")
    assert language(first, second, texts("all", path="text"), steps=4) == ["look", "push", "see", "all"]


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=CODES // 4), max_size=4
    )
)
def test_codes_of_any_text_are_read(values: list[str]) -> None:
    assert language(codes(*values), steps=len(values), encoding="utf8_codes") == values


def test_codes_of_an_episode_are_those_of_all_its_steps() -> None:
    coded = codes("naïve 取", path="codes", dtype="uint8")
    assert language(coded, steps=2, encoding="utf8_codes") == ["naïve 取"] * 2


def test_an_empty_episode_has_no_instructions() -> None:
    assert language(texts(), texts("all", path="text"), steps=0) == []
    assert language(codes(), codes("all", path="codes"), steps=0, encoding="utf8_codes") == []
    assert language(steps=0) == []


def test_a_dataset_or_a_record_without_an_instruction_has_empty_ones() -> None:
    assert language(steps=2) == ["", ""]
    assert language(column("steps/note", None, 2), steps=2) == ["", ""]


@pytest.mark.parametrize("sequences", [(), (None,)], ids=["fixed count", "any count"])
def test_of_several_texts_of_a_step_the_first_that_is_not_empty_is_taken(sequences: tuple[int | None, ...]) -> None:
    values = ["", "b", "c", "d"] if sequences else ["", "b", "", "", "d", "e"]
    lengths = (np.array([3, 0, 1]),) if sequences else ()
    shape = () if sequences else (2,)
    several = column("steps/texts", values, 3, lengths=lengths, shape=shape, sequences=sequences)
    assert language(several, steps=3) == ["b", "", "d"]
