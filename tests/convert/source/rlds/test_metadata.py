"""Features of the tree of a TFDS dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from convert.errors import SourceError
from convert.source.features import Feature
from convert.source.rlds.metadata import flatten_features
from tests.fixtures.leaf_kinds import FEATURES

Tensor, Text, Image, Sequence = tfds.features.Tensor, tfds.features.Text, tfds.features.Image, tfds.features.Sequence


def flatten(tree: dict[str, Any]) -> dict[str, Feature]:
    return flatten_features(tfds.features.FeaturesDict(tree), context="/data/demo/1.0.0")


def flatten_step(feature: Any) -> Feature:
    (result,) = flatten({"steps": tfds.features.Dataset({"x": feature})}).values()
    return result


def test_leaves_are_named_as_the_records_store_them_and_sorted_whatever_the_order_of_the_keys() -> None:
    result = flatten(dict(reversed(FEATURES.items())))
    info = tfds.features.FeaturesDict(FEATURES).get_serialized_info()
    assert list(result) == sorted(tfds.core.utils.flatten_nest_dict(info))
    assert [feature.path for feature in result.values()] == list(result)


def test_features_survive_the_way_through_features_json() -> None:
    tree = tfds.features.FeaturesDict(FEATURES)
    assert flatten_features(type(tree).from_json(tree.to_json()), context="x") == flatten(FEATURES)


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        (np.float32, {"kind": "tensor", "shape": (), "dtype": "float32", "size": 1}),
        (np.bool_, {"kind": "tensor", "shape": (), "dtype": "bool", "size": 1}),
        (tfds.features.Scalar(dtype=np.uint64), {"kind": "tensor", "shape": (), "dtype": "uint64", "size": 1}),
        (Tensor(shape=(4, 4), dtype=np.float64), {"shape": (4, 4), "dtype": "float32", "encoding": "none", "size": 16}),
        (Tensor(shape=(2,), dtype=np.float32, encoding="zlib"), {"encoding": "zlib", "size": 2}),
        (Tensor(shape=(2,), dtype=np.float32, encoding="bytes"), {"encoding": "bytes", "size": 2}),
        (Tensor(shape=(None, 3), dtype=np.uint8), {"shape": (None, 3), "size": None}),
        (Tensor(shape=(0,), dtype=np.float32), {"shape": (0,), "size": 0}),
        (Text(), {"kind": "tensor", "shape": (), "dtype": "string", "size": 1}),
        (Tensor(shape=(2,), dtype=np.str_), {"shape": (2,), "dtype": "string", "size": 2}),
        (tfds.features.ClassLabel(num_classes=3), {"kind": "tensor", "shape": (), "dtype": "int64"}),
        (Image(shape=(24, 32, 3)), {"kind": "image", "shape": (24, 32, 3), "dtype": "uint8"}),
        (Image(shape=(24, 32, 1), dtype=np.uint16), {"kind": "image", "dtype": "uint16"}),
        (Image(shape=(24, 32, 1), dtype=np.float32), {"kind": "image", "dtype": "float32"}),
        (Image(), {"kind": "image", "shape": (None, None, 3), "size": None}),
        (Sequence(np.int32), {"shape": (), "sequences": (None,)}),
        (Sequence(Sequence(Text(), length=3)), {"dtype": "string", "sequences": (None, 3)}),
        (Sequence(Image(shape=(8, 8, 3))), {"kind": "image", "sequences": (None,)}),
    ],
)
def test_a_leaf_has_kind_shape_dtype_and_sequences_as_declared(feature: Any, expected: dict[str, Any]) -> None:
    result = flatten_step(feature)
    assert {key: getattr(result, key) for key in expected} == expected


def test_steps_are_no_sequence_of_their_own_but_of_the_episode_they_are() -> None:
    result = flatten({"steps": Sequence({"x": np.int32}), "boxes": Sequence({"x": np.int32})}).values()
    facts = [(feature.level, feature.sequences, feature.name) for feature in result]
    assert facts == [("episode", (None,), "boxes/x"), ("step", (), "x")]


def test_keys_may_contain_slashes_and_spaces() -> None:
    result = flatten({"steps": tfds.features.Dataset({"present/xyz": np.int32, "end-effector type": Text()})})
    assert [feature.name for feature in result.values()] == ["end-effector type", "present/xyz"]


@pytest.mark.parametrize("tree", [tfds.features.FeaturesDict({"image": Image()}), Image()], ids=["dict", "image"])
def test_a_dataset_without_steps_is_refused(tree: Any) -> None:
    with pytest.raises(SourceError, match=r"here: features\.json has no 'steps', so this is not an RLDS dataset"):
        flatten_features(tree, context="here")


def test_a_kind_of_feature_that_tfds_does_not_have_is_named() -> None:
    with pytest.raises(SourceError, match="is a dict, which RLDS datasets do not have"):
        flatten_features({"steps": 1}, context="x")
