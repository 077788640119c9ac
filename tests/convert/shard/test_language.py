from typing import Any, Literal

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from convert.shard.language import step_language
from convert.source.episode import Column, Episode
from convert.source.features import Feature
from convert.source.rlds.metadata import flatten_features
from convert.source.rlds.parser import EpisodeParser
from tests.fixtures.datasets.rlds_dataset import demo_features, jpeg, serialise

CODES = 24
PICTURE = jpeg(np.zeros((8, 8, 3), np.uint8))
FEATURES = {
    "steps": tfds.features.Dataset(
        {
            "observation": {
                "image": tfds.features.Image(shape=(8, 8, 3), encoding_format="jpeg"),
                "instruction": tfds.features.Tensor(shape=(CODES,), dtype=np.int32),
                "natural_language_instruction": tfds.features.Text(),
            },
            "language_instruction": tfds.features.Text(),
        }
    ),
    "text": tfds.features.Text(),
    "codes": tfds.features.Tensor(shape=(CODES,), dtype=np.uint8),
}
STEP, OBSERVATION, EPISODE = "steps/language_instruction", "steps/observation/natural_language_instruction", "text"


def codes(text: str, dtype: Any = np.int32) -> np.ndarray:
    return np.frombuffer(text.encode().ljust(CODES, b"\0"), np.uint8).astype(dtype)


def language(
    *paths: str,
    steps: list[str] | None = None,
    observations: list[str] | None = None,
    coded: list[str] | None = None,
    episode: str = "",
    encoding: Literal["text", "utf8_codes"] = "text",
) -> list[str]:
    """Return the instructions of a record whose features hold these texts."""
    count = len(steps or observations or coded or [])
    absent = [""] * count
    columns = zip(steps or absent, observations or absent, coded or absent, strict=True)
    record = serialise(
        FEATURES,
        {
            "steps": [
                {
                    "observation": {"image": PICTURE, "instruction": codes(code), "natural_language_instruction": seen},
                    "language_instruction": said,
                }
                for said, seen, code in columns
            ],
            "text": episode,
            "codes": codes(episode, np.uint8),
        },
    )
    features = flatten_features(tfds.features.FeaturesDict(FEATURES), context="test")
    parser = EpisodeParser([features["steps/observation/image"]], features_of(features, paths))
    return step_language(parser.parse(record), features_of(features, paths), encoding=encoding)


def features_of(features: Any, paths: tuple[str, ...]) -> list[Any]:
    return [features[path] for path in paths]


def test_the_instruction_of_each_step_is_taken() -> None:
    assert language(STEP, steps=["open", "close", ""]) == ["open", "close", ""]


def test_the_instruction_of_an_episode_is_that_of_all_its_steps() -> None:
    assert language(EPISODE, steps=["x", "y", "z"], episode="tidy up") == ["tidy up"] * 3


def test_an_alternative_stands_in_where_the_first_is_empty() -> None:
    steps, observations = ["", "push", "", ""], ["look", "no", "see", ""]
    assert language(STEP, OBSERVATION, EPISODE, steps=steps, observations=observations, episode="all") == [
        "look",
        "push",
        "see",
        "all",
    ]


def test_padding_alone_is_an_empty_instruction() -> None:
    assert language(STEP, EPISODE, steps=["\0\0", "push\0"], episode="all") == ["all", "push"]


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=CODES // 4), max_size=4
    )
)
def test_codes_of_any_text_are_read(texts: list[str]) -> None:
    assert language("steps/observation/instruction", coded=texts, encoding="utf8_codes") == texts


def test_codes_of_an_episode_are_those_of_all_its_steps() -> None:
    assert language("codes", steps=["", ""], episode="naïve 取", encoding="utf8_codes") == ["naïve 取"] * 2


@pytest.mark.parametrize(
    ("paths", "encoding"),
    [((STEP, OBSERVATION, EPISODE), "text"), (("steps/observation/instruction", "codes"), "utf8_codes"), ((), "text")],
)
def test_an_empty_episode_has_no_instructions(paths: tuple[str, ...], encoding: Literal["text", "utf8_codes"]) -> None:
    assert language(*paths, episode="all", encoding=encoding) == []


def test_a_dataset_without_an_instruction_has_empty_ones() -> None:
    assert language(steps=["ignored", "too"]) == ["", ""]


def test_a_record_without_the_feature_has_empty_instructions() -> None:
    features = flatten_features(tfds.features.FeaturesDict(demo_features(note=tfds.features.Text())), context="test")
    parser = EpisodeParser([features["steps/observation/image"]], [features["steps/note"]])
    record = serialise(FEATURES, {"steps": [step() for _ in range(2)], "text": "", "codes": codes("", np.uint8)})
    assert step_language(parser.parse(record), [features["steps/note"]], encoding="text") == ["", ""]


def step() -> dict[str, Any]:
    seen = {"image": PICTURE, "instruction": codes(""), "natural_language_instruction": "x"}
    return {"observation": seen, "language_instruction": "y"}


@pytest.mark.parametrize("sequences", [(), (None,)], ids=["fixed count", "any count"])
def test_of_several_texts_of_a_step_the_first_that_is_not_empty_is_taken(sequences: tuple[int | None, ...]) -> None:
    shape = () if sequences else (2,)
    feature = Feature(path="steps/texts", kind="tensor", level="step", shape=shape, dtype="string", sequences=sequences)
    lengths = (np.array([3, 0, 1]),) if sequences else ()
    texts = ["", "b", "c", "d"] if sequences else ["", "b", "", "", "d", "e"]
    column = Column(feature=feature, values=texts, lengths=lengths, rows=3)
    episode = Episode(num_steps=3, steps={"texts": column}, episode={}, cameras=[])
    assert step_language(episode, [feature], encoding="text") == ["b", "", "d"]
