"""One generated episode: a value of the right kind for every feature that the dataset declares."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import simplejpeg
import yaml
from numpy.typing import NDArray

from convert.errors import UsageError
from convert.registry.registry import DatasetSpec
from convert.sample.record import SampleColumn
from convert.sample.scene import DEPTH_PER_METRE, Scene
from convert.sample.values import HORIZON, Kinematics, embed_text
from convert.source.features import STEPS, Feature, flatten_features
from stream.storage.configs import CONFIGS

JPEG_QUALITY = 95
_SNAPSHOT_PACE = 37.0
_PICTURE_SIDE = 32
"""A tensor with two dimensions of at least this is a picture (depth or labels) and not a matrix."""
_OUTCOMES = ("success", "failure")
_FLAGS = {"is_first": 0, "is_last": -1, "is_terminal": -1, "reward": -1}
_LENGTHS = ("sequence_length", "n_transitions", "num_steps")

cv2.setNumThreads(1)
cv2.ipp.setUseIPP(False)


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """What is needed to generate episodes of one dataset, and nothing that is slow to send to another process.

    features: in the order of the tree. formats: of images, by path. hints: the dataset's part of configs/sample.yaml.
    """

    spec: DatasetSpec
    features: tuple[Feature, ...]
    formats: dict[str, Literal["jpeg", "png"]]
    hints: dict[str, Any]

    @property
    def cost(self) -> int:
        """Bytes of raw pixels and numbers in a step: what a step takes to make, up to a factor."""
        return sum(np.dtype(f.dtype).itemsize * (f.size or 1) for f in self.features if f.dtype != "string") + 1


def read_feature_tree(tfds_name: str) -> Any:
    """The features of a dataset as TFDS connectors, from ``configs/features``.

    Raises:
        UsageError: there is no such file.
    """
    import tensorflow_datasets as tfds

    return tfds.features.FeaturesDict.from_json(json.loads(read_features_json(tfds_name)))


def read_features_json(tfds_name: str) -> str:
    """The text of ``configs/features/<tfds_name>.json``.

    Raises:
        UsageError: there is no such file.
    """
    folder = CONFIGS / "features"
    try:
        return folder.joinpath(f"{tfds_name}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        known = sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
        raise UsageError(
            f"{tfds_name}: no feature tree to make a sample of; configs/features has {', '.join(known)}. "
            f"Put the features.json of the dataset there as {tfds_name}.json"
        ) from None


def read_hints(tfds_name: str) -> dict[str, Any]:
    """The entry of a dataset in ``configs/sample.yaml``, with what holds for any dataset filled in."""
    content = _hints_file()
    common, own = content["any"], content["datasets"].get(tfds_name, {})
    return {**common, **own, "features": own.get("features", {}), "any_features": common["features"]}


@functools.cache
def _hints_file() -> Any:
    return yaml.safe_load(CONFIGS.joinpath("sample.yaml").read_text(encoding="utf-8"))


def prepare_source(spec: DatasetSpec) -> SampleSource:
    """Read what is known about a dataset.

    Raises:
        UsageError: its feature tree is not known, or has an image of unknown size.
    """
    tree = read_feature_tree(spec.tfds_name)
    features = tuple(flatten_features(tree, where=f"configs/features/{spec.tfds_name}.json").values())
    for feature in features:
        if None in feature.shape:
            raise UsageError(
                f"{spec.tfds_name}: {feature.path} has the shape {feature.shape}; a sample needs fixed sizes"
            )
    formats: dict[str, Literal["jpeg", "png"]] = {}
    for feature in features:
        if feature.kind == "image":
            formats[feature.path] = _connector(tree, feature.path).encoding_format or "png"
    return SampleSource(spec=spec, features=features, formats=formats, hints=read_hints(spec.tfds_name))


def make_episode(source: SampleSource, *, split: str, episode: int, steps: int, seed: int) -> dict[str, SampleColumn]:
    """Generate one episode.

    Args:
        source: of ``prepare_source``.
        split, episode: which one; each has a scene of its own.
        steps: 0 and more. A shorter episode shows the beginning of a longer one.
        seed: of the whole sample.

    Returns:
        A column for every feature, by flattened TFDS name. The same arguments give the same columns.
    """
    maker = _EpisodeMaker(source, split=split, episode=episode, steps=steps, seed=seed)
    return {feature.path: maker.column(feature) for feature in source.features}


class _EpisodeMaker:
    def __init__(self, source: SampleSource, *, split: str, episode: int, steps: int, seed: int) -> None:
        names = [zlib.crc32(name.encode()) for name in (source.spec.tfds_name, split)]
        rng = np.random.default_rng([seed, *names, episode])
        self._source, self._hints, self._spec = source, source.hints, source.spec
        self._split, self._episode, self._steps = split, episode, steps
        self._scene = Scene(rng, pace=_SNAPSHOT_PACE if self._hints.get("snapshots") else 1.0)
        motion = self._scene.motion(steps + HORIZON + 1)
        self._kinematics = Kinematics(motion, steps=steps, rng=rng, rate=self._spec.control_frequency or 10.0)
        self._rng = rng
        self._swapped = {camera.path for camera in self._spec.cameras.values() if camera.channels == "bgr"}
        travel = motion.position[max(0, steps - 1)] - motion.position[0]
        side = int(np.argmax(np.abs(travel[:2])))
        place = (("to the left", "to the right"), ("away from you", "towards you"))[side][int(travel[side] > 0)]
        words = {"colour": "red", "thing": self._scene.thing, "place": place}
        # Not format(): instructions of vima have braces of their own.
        text = str(_turn(self._hints["instructions"], episode))
        for word, value in words.items():
            text = text.replace(f"{{{word}}}", value)
        self._instruction = text
        self._texts = {
            **words,
            "instruction": text,
            "paraphrase": f"please {text[:1].lower()}{text[1:]}",
            "dataset": self._spec.tfds_name,
            "split": split,
            "episode": str(episode),
            "outcome": _OUTCOMES[episode % 3 == 2],
        }

    def column(self, feature: Feature) -> SampleColumn:
        path = _registry_path(feature)
        hint = self._hint(path)
        if feature.sequences:
            return self._ragged(feature, hint if isinstance(hint, dict) else {})
        rows = self._steps if feature.level == "step" else 1
        if feature.dtype == "string":
            return SampleColumn(values=[text.encode() for text in self._words(path, hint, rows)])
        pictures = self._pictures(feature, path)
        if pictures is not None:
            if feature.kind == "image":
                encode = _encoder(feature, self._source.formats[feature.path])
                return SampleColumn(values=[encode(pictures(step)) for step in range(rows)])
            values = np.stack([pictures(step) for step in range(rows)]) if rows else np.empty((0, *_shape(feature)))
            return SampleColumn(values=values.astype(feature.dtype))
        values = self._numbers(feature, path, hint, rows)
        if feature.encoding != "none":
            stored = [row.tobytes() for row in values]
            return SampleColumn(values=[zlib.compress(row) for row in stored] if feature.encoding == "zlib" else stored)
        return SampleColumn(values=values)

    def _hint(self, path: str) -> Any:
        """What the configuration says about a feature in this episode; None if nothing."""
        hints = self._hints["features"]
        hint = hints[path] if path in hints else self._hints["any_features"].get(path.rsplit("/", 1)[-1])
        return _turn(hint, self._episode) if isinstance(hint, list) else hint

    def _words(self, path: str, hint: Any, rows: int) -> list[str]:
        instruction = self._spec.instruction
        if hint is None and instruction is not None and path in (instruction.path, *instruction.alternatives):
            hint = "{instruction}"
        if hint is None:
            hint = f"{path.rsplit('/', 1)[-1]} {self._episode}"
        texts = hint["steps"] if isinstance(hint, dict) else [hint]
        filled = [str(text).format(**self._texts) for text in texts]
        return [_turn(filled, self._episode + row) if len(filled) > 1 else filled[0] for row in range(rows)]

    def _pictures(self, feature: Feature, path: str) -> Callable[[int], NDArray] | None:
        """The function from a step to the picture that a feature holds; None if it holds none."""
        shape = _shape(feature)
        if len(shape) < 2 or min(shape[:2]) < _PICTURE_SIDE:
            return None
        height, width, *channels = shape
        size = {"height": height, "width": width}
        scene = self._scene
        if np.dtype(feature.dtype).kind == "f":
            return lambda step: (
                scene.depth(step, path, **size).reshape(shape).astype(np.float32) / np.float32(DEPTH_PER_METRE)
            )
        if feature.dtype == "uint16":
            return lambda step: scene.depth(step, path, **size).reshape(shape)
        if channels != [3]:
            return lambda step: scene.labels(step, path, **size).reshape(shape)
        if path in self._hints.get("blank", ()):
            return lambda _: np.full((height, width, 3), 114, np.uint8)
        if path in self._swapped:
            return lambda step: np.ascontiguousarray(scene.colour(step, path, **size)[:, :, ::-1])
        return lambda step: scene.colour(step, path, **size)

    def _numbers(self, feature: Feature, path: str, hint: Any, rows: int) -> NDArray:
        """Values [rows, *shape] in the feature's dtype (float64 holds what float32 can, as records store no more)."""
        size, name = feature.size or 1, path.rsplit("/", 1)[-1]
        spec = self._spec
        values: NDArray
        if hint is not None:
            series = [_turn(hint["steps"], step) for step in range(rows)] if isinstance(hint, dict) else [hint] * rows
            values = np.repeat(np.array(series, np.float64).reshape(rows, 1), size, axis=1)
        elif (
            spec.instruction is not None and spec.instruction.encoding == "utf8_codes" and path == spec.instruction.path
        ):
            codes = np.zeros(size)
            text = self._instruction.encode()[:size]
            codes[: len(text)] = list(text)
            values = np.tile(codes, (rows, 1))
        elif name in _FLAGS or name == "discount":
            values = np.zeros((rows, size))
            values[slice(None) if name == "discount" else slice(_FLAGS[name], _FLAGS[name] + 1 or None)] = 1
        elif name in _LENGTHS:
            values = np.full((rows, size), self._steps)
        elif "embedding" in name:
            values = np.tile(embed_text(self._instruction, size), (rows, 1))
        elif feature.level == "episode":
            values = self._rng.uniform(-1, 1, (1, size))
        else:
            parts = [part for part in (*spec.action, *spec.state) if part.path == path]
            ahead = int(path in self._hints.get("next_step", ()))
            if parts:
                values = self._kinematics.of_parts(path, size, parts, ahead=ahead)
            else:
                values = self._kinematics.of_name(path, size, ahead=ahead)
        if any(path.startswith(prefix) for prefix in self._hints.get("first_step_zero", ())):
            values[:1] = 0
        return _cast(values, feature.dtype).reshape(rows, *_shape(feature))

    def _ragged(self, feature: Feature, hint: dict[str, Any]) -> SampleColumn:
        """A feature with sequences: counts come from the configuration, items from it or the scene."""
        counts = hint.get("counts") or [[2, 1, 3]] * len(feature.sequences)
        path = _registry_path(feature)
        rows = self._steps if feature.level == "step" else 1
        levels: list[list[int]] = [[] for _ in feature.sequences]
        items: list[Any] = []
        for row in range(rows):
            at = self._episode if hint.get("same", feature.level == "episode") else self._episode + row
            width = [1]
            for level, choices in zip(levels, counts, strict=True):
                width = [_turn(choices, at + place) for place in range(sum(width))]
                level.extend(width)
            items.extend(range(sum(width)))
        pictures = self._pictures(feature, path)
        values: NDArray | list[bytes]
        if pictures is not None:
            # Prompt images are the same on every step; they show other moments of the scene.
            known = {item: pictures(1000 + item) for item in sorted(set(items))}
            values = np.stack([known[item] for item in items]) if items else np.empty((0, *_shape(feature)), np.uint8)
            values = values.astype(feature.dtype)
        elif feature.dtype == "string":
            texts = hint.get("items") or [path.rsplit("/", 1)[-1]]
            values = [str(_turn(texts, item)).encode() for item in items]
        else:
            numbers = hint.get("items") or [0, 1, 2, 3]
            column = np.array([_turn(numbers, item) for item in items], np.float64).reshape(-1, 1)
            values = _cast(np.repeat(column, feature.size or 1, axis=1), feature.dtype).reshape(-1, *_shape(feature))
        # Sequences of an episode are plain columns; those inside the steps are ragged.
        levels = levels if feature.level == "step" else levels[1:]
        return SampleColumn(values=values, row_lengths=tuple(levels) if levels else None)


def _registry_path(feature: Feature) -> str:
    """The name of a feature in the notation of the registry."""
    return feature.path.removeprefix(f"{STEPS}/") if feature.level == "step" else f"/{feature.path}"


def _shape(feature: Feature) -> tuple[int, ...]:
    return tuple(int(side or 0) for side in feature.shape)


def _turn(choices: Sequence[Any], position: int) -> Any:
    return choices[position % len(choices)]


def _cast(values: NDArray, dtype: str) -> NDArray:
    if dtype == "bool":
        return values > 0.5
    if np.dtype(dtype).kind in "iu":
        # What swings about zero becomes a small positive number; counts and flags stay what they are.
        swings = values.size and values.min() < 0 and np.any(values != np.rint(values))
        return np.rint(4 + 3 * values if swings else values).clip(0 if dtype.startswith("u") else None).astype(dtype)
    return values.astype(np.float32).astype(dtype)


def _encoder(feature: Feature, image_format: str) -> Callable[[NDArray], bytes]:
    """The function that stores a picture as TFDS would: RGB as JPEG or PNG, float32 as the bytes of a 4-channel PNG."""
    if image_format == "jpeg":
        return lambda picture: simplejpeg.encode_jpeg(picture, quality=JPEG_QUALITY, colorsubsampling="420")
    # Noisy pictures have nothing to match; the float bits of depth have runs of zeros, which OpenCV's default finds.
    noisy = feature.dtype != "float32"
    options = [cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_HUFFMAN_ONLY] if noisy else []

    def encode(picture: NDArray) -> bytes:
        if feature.dtype == "float32":
            picture = cv2.cvtColor(np.ascontiguousarray(picture).view(np.uint8), cv2.COLOR_RGBA2BGRA)
        elif picture.shape[-1] == 3:
            picture = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
        return cv2.imencode(".png", picture, options)[1].tobytes()

    return encode


def _connector(node: Any, path: str) -> Any:
    """The connector of a leaf by its flattened name; keys may contain slashes themselves."""
    if not path:
        return node
    if hasattr(node, "feature"):
        return _connector(node.feature, path)
    for key, child in node.items():
        if path == key or path.startswith(f"{key}/"):
            return _connector(child, path[len(key) + 1 :])
    raise KeyError(path)
