"""A dataset with every kind of feature that RLDS datasets have, and some more, for tests that compare with TFDS."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tests.rlds_dataset import jpeg, picture

Tensor, Text, Image, Sequence = tfds.features.Tensor, tfds.features.Text, tfds.features.Image, tfds.features.Sequence

STEP_LEAVES: dict[str, Any] = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bool": np.bool_,
    "int8": np.int8,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "vector": Tensor(shape=(3,), dtype=np.float32),
    "double_vector": Tensor(shape=(3,), dtype=np.float64),
    "matrix": Tensor(shape=(4, 4), dtype=np.float64),
    "flags": Tensor(shape=(3,), dtype=np.bool_),
    "big_integers": Tensor(shape=(2,), dtype=np.uint64),
    "text": Text(),
    "padded": Text(),
    "texts": Tensor(shape=(2,), dtype=np.str_),
    "class": tfds.features.ClassLabel(names=["open", "closed"]),
    "zlib": Tensor(shape=(2, 3), dtype=np.float32, encoding="zlib"),
    "zlib_double": Tensor(shape=(2,), dtype=np.float64, encoding="zlib"),
    "zlib_bool": Tensor(shape=(2,), dtype=np.bool_, encoding="zlib"),
    "bytes": Tensor(shape=(2,), dtype=np.int16, encoding="bytes"),
    "bytes_scalar": Tensor(shape=(), dtype=np.float32, encoding="bytes"),
    "present/xyz": Tensor(shape=(3,), dtype=np.float32),
    "end-effector type": Text(),
    "nested": {"deeper/still": {"value": np.int32}},
    "words": Sequence(Text()),
    "numbers": Sequence(np.int32),
    "objects": Sequence({"pose": Tensor(shape=(2,), dtype=np.float32), "name": Text()}),
    "two_deep": Sequence(Sequence(np.int64)),
    "two_deep_texts": Sequence({"words": Sequence(Text())}),
    "three_deep": Sequence(Sequence(Sequence(np.float32))),
    "sequence_of_zlib": Sequence(Tensor(shape=(2,), dtype=np.float32, encoding="zlib")),
}
# TFDS writes these, but cannot read them: only one of their dimensions is open, so it expects no row lengths.
WRITE_ONLY_LEAVES: dict[str, Any] = {
    "fixed": Sequence(np.int32, length=3),
    "fixed_deep": Sequence(Sequence(np.int32, length=2), length=2),
    "fixed_objects": Sequence({"name": Text()}, length=2),
}
EPISODE_LEAVES: dict[str, Any] = {
    "file_path": Text(),
    "success": np.bool_,
    "count": np.int32,
    "vector": Tensor(shape=(2,), dtype=np.float32),
    "end-effector type": Text(),
    "tags": Sequence(Text()),
    "ids": Sequence(np.int32),
    "objects": Sequence({"pose": Tensor(shape=(2,), dtype=np.float32), "zlib": STEP_LEAVES["zlib"]}),
    "two_deep": Sequence(Sequence(np.int32)),
    "three_deep": Sequence(Sequence(Sequence(np.int32))),
    "fixed": Sequence(np.float32, length=2),
}
RAW_SHAPE = (6, 5, 3)


def make_features(step_leaves: dict[str, Any]) -> dict[str, Any]:
    observation = {
        "image": Image(shape=(24, 32, 3), encoding_format="jpeg"),
        "raw": Tensor(shape=RAW_SHAPE, dtype=np.uint8),
    }
    return {
        "steps": tfds.features.Dataset({"observation": observation, **step_leaves}),
        "episode_metadata": EPISODE_LEAVES,
    }


FEATURES = make_features({**STEP_LEAVES, **WRITE_ONLY_LEAVES})


def make_step(rng: np.random.Generator) -> dict[str, Any]:
    def floats(*shape: int, dtype: Any = np.float32) -> Any:
        return rng.normal(size=shape).astype(dtype)

    def words(count: int) -> list[str]:
        return [f"wörd {rng.integers(100)}" for _ in range(count)]

    def some() -> int:
        return int(rng.integers(0, 4))

    def integers() -> list[int]:
        return rng.integers(-9, 9, some()).tolist()

    def extreme(dtype: Any) -> Any:
        info = np.iinfo(dtype)
        return dtype([info.min, info.max][some() % 2])

    return {
        "observation": {
            "image": jpeg(picture(rng, (24, 32))),
            "raw": rng.integers(0, 256, RAW_SHAPE, dtype=np.uint8),
        },
        "float32": floats()[()],
        "float64": floats(dtype=np.float64)[()],
        "float16": floats(dtype=np.float16)[()],
        "bool": bool(some() % 2),
        **{
            kind: extreme(getattr(np, kind))
            for kind in ("int8", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
        },
        "vector": floats(3),
        "double_vector": floats(3, dtype=np.float64),
        "matrix": floats(4, 4, dtype=np.float64),
        "flags": rng.integers(0, 2, 3).astype(np.bool_),
        "big_integers": np.array([2**64 - 1, 2**63], np.uint64),
        "text": words(1)[0],
        "padded": words(1)[0].encode() + b"\0\0\0",
        "texts": words(2),
        "class": some() % 2,
        "zlib": floats(2, 3),
        "zlib_double": floats(2, dtype=np.float64),
        "zlib_bool": np.array([True, False]),
        "bytes": rng.integers(-99, 99, 2).astype(np.int16),
        "bytes_scalar": floats()[()],
        "present/xyz": floats(3),
        "end-effector type": "suction",
        "nested": {"deeper/still": {"value": some()}},
        "words": words(some()),
        "numbers": integers(),
        "objects": [{"pose": floats(2), "name": words(1)[0]} for _ in range(some())],
        "two_deep": [integers() for _ in range(some())],
        "two_deep_texts": [{"words": words(some())} for _ in range(some())],
        "three_deep": [[floats(some()).tolist() for _ in range(some())] for _ in range(some())],
        "fixed": rng.integers(0, 9, 3).tolist(),
        "fixed_deep": rng.integers(0, 9, (2, 2)).tolist(),
        "fixed_objects": [{"name": "first"}, {"name": words(1)[0]}],
        "sequence_of_zlib": [floats(2) for _ in range(some())],
    }


def make_episode(steps: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    objects = [
        {"pose": np.ones(2, np.float32) * i, "zlib": rng.normal(size=(2, 3)).astype(np.float32)} for i in range(seed)
    ]
    return {
        "steps": [make_step(rng) for _ in range(steps)],
        "episode_metadata": {
            "file_path": f"/data/{seed}",
            "success": bool(seed % 2),
            "count": -seed,
            "vector": np.array([seed, 0.5], np.float32),
            "end-effector type": "spatula",
            "tags": ["a", "béta", ""][:seed],
            "ids": list(range(seed)),
            "objects": objects,
            "two_deep": [list(range(i)) for i in range(seed)],
            "three_deep": [[list(range(i))] * i for i in range(seed)],
            "fixed": [0.5, seed],
        },
    }


EPISODES = [make_episode(3, 1), make_episode(0, 0), make_episode(1, 3), make_episode(5, 2)]
