"""One generated episode: a value of the right kind for every feature that the dataset declares."""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from convert.source.features import Feature
from convert.source.rlds.features import flatten_features
from stream.storage.configs import CONFIGS

JPEG_QUALITY = 95
_SNAPSHOT_PACE = 37.0
_PICTURE_SIDE = 32
"""A tensor with two dimensions of at least this size is a picture (depth or labels), not a matrix."""
_USED_OF_SPEC = {"cameras", "instruction", "action", "state", "control_frequency", "splits"}
_FLAGS = {"is_first": slice(0, 1), "is_last": slice(-1, None), "is_terminal": slice(-1, None)}
_FLAGS |= {"reward": slice(-1, None), "discount": slice(None)}
"""Steps in which a flag is 1."""
_LENGTHS = ("sequence_length", "n_transitions", "num_steps")

cv2.setNumThreads(1)
cv2.ipp.setUseIPP(False)


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """Everything needed to generate episodes of one dataset, quick to send to another process.

    Attributes:
        spec: Entry of the registry.
        features: Leaves of the feature tree, in its order.
        formats: ``jpeg`` or ``png`` of each image, by path.
        hints: Entry of the dataset in ``configs/sample.yaml``, with the defaults of all datasets.
        content: Hash of all that the files depend on besides the command's arguments.
    """

    spec: DatasetSpec
    features: tuple[Feature, ...]
    formats: dict[str, str]
    hints: dict[str, Any]
    content: str

    @property
    def cost(self) -> int:
        """Return the bytes of raw pixels and numbers in a step: the work of a step, up to a factor."""
        return sum(np.dtype(f.dtype).itemsize * (f.size or 1) for f in self.features if f.dtype != "string") + 1


def read_feature_tree(tfds_name: str) -> Any:
    """Return the features of a dataset as TFDS connectors, from ``configs/features``.

    Raises:
        UsageError: The file does not exist.
    """
    import tensorflow_datasets as tfds

    return tfds.features.FeaturesDict.from_json(json.loads(_features_json(tfds_name)))


def _features_json(tfds_name: str) -> str:
    folder = CONFIGS / "features"
    try:
        return folder.joinpath(f"{tfds_name}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        known = sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
        raise UsageError(
            f"{tfds_name}: no feature tree to make a sample of; configs/features has {', '.join(known)}. "
            f"Put the features.json of the dataset there as {tfds_name}.json"
        ) from None


@functools.cache
def _hints_file() -> Any:
    return yaml.safe_load(CONFIGS.joinpath("sample.yaml").read_text(encoding="utf-8"))


def prepare_source(spec: DatasetSpec) -> SampleSource:
    """Read features and hints of a dataset.

    Raises:
        UsageError: The feature tree is unknown, or has a feature without a fixed shape.
    """
    name = spec.tfds_name
    tree = read_feature_tree(name)
    features = tuple(flatten_features(tree, where=f"configs/features/{name}.json").values())
    for feature in features:
        if None in feature.shape:
            raise UsageError(f"{name}: {feature.path} has the shape {feature.shape}; a sample needs fixed sizes")
    images = [feature.path for feature in features if feature.kind == "image"]
    common, own = _hints_file()["any"], _hints_file()["datasets"].get(name, {})
    hints = {**common, **own, "features": own.get("features", {}), "any_features": common["features"]}
    content = "\0".join([_features_json(name), spec.model_dump_json(include=_USED_OF_SPEC), json.dumps(hints)])
    return SampleSource(
        spec=spec,
        features=features,
        formats={path: _connector(tree, path).encoding_format or "png" for path in images},
        hints=hints,
        content=hashlib.sha256(content.encode()).hexdigest(),
    )


def _connector(node: Any, path: str) -> Any:
    """Return the connector of a leaf by its flattened name; keys may contain slashes themselves."""
    if not path:
        return node
    node = getattr(node, "feature", node)
    key = next(key for key in node if path == key or path.startswith(f"{key}/"))
    return _connector(node[key], path[len(key) + 1 :])


def make_episode(source: SampleSource, *, split: str, episode: int, steps: int, seed: int) -> dict[str, SampleColumn]:
    """Generate one episode.

    Args:
        source: Result of ``prepare_source``.
        split: Name of the split.
        episode: Number of the episode; each episode of each split has its own scene.
        steps: Length from 0; a shorter episode shows the beginning of a longer one.
        seed: Seed of the whole sample.

    Returns:
        A column for every feature, by flattened TFDS name. The same arguments give the same columns.
    """
    maker = _EpisodeMaker(source, split=split, episode=episode, steps=steps, seed=seed)
    return {feature.path: maker.column(feature) for feature in source.features}


class _EpisodeMaker:
    def __init__(self, source: SampleSource, *, split: str, episode: int, steps: int, seed: int) -> None:
        names = [zlib.crc32(name.encode()) for name in (source.spec.tfds_name, split)]
        rng = np.random.default_rng([seed, *names, episode])
        self._source, self._hints, self._spec, self._rng = source, source.hints, source.spec, rng
        self._episode, self._steps = episode, steps
        self._scene = Scene(rng, pace=_SNAPSHOT_PACE if self._hints.get("snapshots") else 1.0)
        motion = self._scene.motion(steps + HORIZON + 1)
        self._kinematics = Kinematics(motion, steps=steps, rng=rng, rate=self._spec.control_frequency or 10.0)
        self._swapped = {camera.path for camera in self._spec.cameras.values() if camera.channels == "bgr"}
        travel = motion.position[max(0, steps - 1)] - motion.position[0]
        side = int(np.argmax(np.abs(travel[:2])))
        place = (("to the left", "to the right"), ("away from you", "towards you"))[side][int(travel[side] > 0)]
        words = {"colour": "red", "thing": self._scene.thing, "place": place}
        # Not format(): instructions of vima have their own braces.
        text = str(_turn(self._hints["instructions"], episode))
        for word, value in words.items():
            text = text.replace(f"{{{word}}}", value)
        self._texts = {
            **words,
            "instruction": text,
            "paraphrase": f"please {text[:1].lower()}{text[1:]}",
            "dataset": self._spec.tfds_name,
            "split": split,
            "episode": str(episode),
            "outcome": "failure" if episode % 3 == 2 else "success",
        }

    def column(self, feature: Feature) -> SampleColumn:
        """Return the values of a feature."""
        path = feature.name if feature.level == "step" else f"/{feature.path}"
        rows = self._steps if feature.level == "step" else 1
        hint = self._hint(path)
        pictures = self._pictures(feature, path)
        if feature.sequences:
            return self._ragged(feature, rows, hint if isinstance(hint, dict) else {}, pictures)
        if feature.dtype == "string":
            return SampleColumn(values=[text.encode() for text in self._words(path, hint, rows)])
        if pictures is not None:
            if feature.kind == "image":
                image_format = self._source.formats[feature.path]
                return SampleColumn(values=[_encode(pictures(step), image_format) for step in range(rows)])
            return SampleColumn(values=_stack([pictures(step) for step in range(rows)], feature))
        values = self._numbers(feature, path, hint, rows)
        if feature.encoding == "none":
            return SampleColumn(values=values)
        pack = zlib.compress if feature.encoding == "zlib" else bytes
        return SampleColumn(values=[pack(row.tobytes()) for row in values])

    def _hint(self, path: str) -> Any:
        """Return the configured value of a feature in this episode, None if it has none."""
        hints = self._hints["features"]
        hint = hints[path] if path in hints else self._hints["any_features"].get(path.rsplit("/", 1)[-1])
        return _turn(hint, self._episode) if isinstance(hint, list) else hint

    def _words(self, path: str, hint: Any, rows: int) -> list[str]:
        instruction = self._spec.instruction
        if hint is None:
            said = instruction is not None and path in (instruction.path, *instruction.alternatives)
            hint = "{instruction}" if said else f"{path.rsplit('/', 1)[-1]} {self._episode}"
        texts = hint["steps"] if isinstance(hint, dict) else [hint]
        filled = [str(text).format(**self._texts) for text in texts]
        return [_turn(filled, self._episode + row) if len(filled) > 1 else filled[0] for row in range(rows)]

    def _pictures(self, feature: Feature, path: str) -> Callable[[int], NDArray] | None:
        """Return the function from a step to the feature's picture, None if the feature is not a picture."""
        shape = _shape(feature)
        if feature.dtype == "string" or len(shape) < 2 or min(shape[:2]) < _PICTURE_SIDE:
            return None
        size = {"height": shape[0], "width": shape[1]}
        scene = self._scene

        def depth(step: int) -> NDArray:
            units = scene.depth(step, path, **size).reshape(shape)
            return units if feature.dtype == "uint16" else units.astype(np.float32) / np.float32(DEPTH_PER_METRE)

        def colour(step: int) -> NDArray:
            picture = scene.colour(step, path, **size)
            return np.ascontiguousarray(picture[:, :, ::-1]) if path in self._swapped else picture

        if feature.dtype == "uint16" or np.dtype(feature.dtype).kind == "f":
            return depth
        if shape[2:] != (3,):
            return lambda step: scene.labels(step, path, **size).reshape(shape)
        if path in self._hints.get("blank", ()):
            return lambda _: np.full(shape, 114, np.uint8)
        return colour

    def _numbers(self, feature: Feature, path: str, hint: Any, rows: int) -> NDArray:
        """Return values [rows, *shape] in the feature's dtype; float64 holds what float32 can, as in records."""
        size, name, spec = feature.size or 1, path.rsplit("/", 1)[-1], self._spec
        values: NDArray = np.zeros((rows, size))
        if hint is not None:
            values.T[:] = [_turn(hint["steps"], step) for step in range(rows)] if isinstance(hint, dict) else hint
        elif spec.instruction and spec.instruction.encoding == "utf8_codes" and path == spec.instruction.path:
            codes = list(self._texts["instruction"].encode()[:size])
            values[:, : len(codes)] = codes
        elif name in _FLAGS:
            values[_FLAGS[name]] = 1
        elif name in _LENGTHS:
            values[:] = self._steps
        elif "embedding" in name:
            values[:] = embed_text(self._texts["instruction"], size)
        elif feature.level == "episode":
            values = self._rng.uniform(-1, 1, (1, size))
        else:
            parts = [part for part in (*spec.action, *spec.state) if part.path == path]
            ahead = int(path in self._hints.get("next_step", ()))
            if parts:
                values = self._kinematics.of_parts(path, size, parts, ahead=ahead)
            else:
                values = self._kinematics.of_name(path, size, self._hints, ahead=ahead)
        if any(path.startswith(prefix) for prefix in self._hints.get("first_step_zero", ())):
            values[:1] = 0
        return _cast(values, feature.dtype).reshape(rows, *_shape(feature))

    def _ragged(
        self, feature: Feature, rows: int, hint: dict[str, Any], pictures: Callable[[int], NDArray] | None
    ) -> SampleColumn:
        """Return a feature with sequences: counts come from the configuration, items from it or the scene."""
        counts = hint.get("counts") or [[2, 1, 3]] * len(feature.sequences)
        levels: list[list[int]] = [[] for _ in feature.sequences]
        items: list[int] = []
        for row in range(rows):
            at = self._episode if hint.get("same", feature.level == "episode") else self._episode + row
            width = [1]
            for level, choices in zip(levels, counts, strict=True):
                width = [_turn(choices, at + place) for place in range(sum(width))]
                level.extend(width)
            items.extend(range(sum(width)))
        values: NDArray | list[bytes]
        if pictures is not None:
            # Prompt images are the same on every step; they show other moments of the scene.
            known = {item: pictures(1000 + item) for item in sorted(set(items))}
            values = _stack([known[item] for item in items], feature)
        elif feature.dtype == "string":
            texts = hint.get("items") or [feature.path.rsplit("/", 1)[-1]]
            values = [str(_turn(texts, item)).encode() for item in items]
        else:
            numbers = hint.get("items") or [0, 1, 2, 3]
            column = np.array([_turn(numbers, item) for item in items], np.float64).reshape(-1, 1)
            values = _cast(np.repeat(column, feature.size or 1, axis=1), feature.dtype).reshape(-1, *_shape(feature))
        # Sequences of an episode are plain columns; sequences inside the steps are ragged.
        levels = levels if feature.level == "step" else levels[1:]
        return SampleColumn(values=values, row_lengths=tuple(levels) if levels else None)


def _shape(feature: Feature) -> tuple[int, ...]:
    return tuple(int(side or 0) for side in feature.shape)


def _stack(pictures: Sequence[NDArray], feature: Feature) -> NDArray:
    return np.array(pictures, feature.dtype).reshape(-1, *_shape(feature))


def _turn(choices: Sequence[Any], position: int) -> Any:
    return choices[position % len(choices)]


def _cast(values: NDArray, dtype: str) -> NDArray:
    if dtype == "bool":
        return values > 0.5
    if np.dtype(dtype).kind in "iu":
        # Values that swing about zero become small positive numbers; counts and flags keep their values.
        swings = values.size and values.min() < 0 and np.any(values != np.rint(values))
        return np.rint(4 + 3 * values if swings else values).clip(0 if dtype.startswith("u") else None).astype(dtype)
    return values.astype(np.float32).astype(dtype)


def _encode(picture: NDArray, image_format: str) -> bytes:
    """Store a picture as TFDS would: RGB as JPEG or PNG, float32 as the bytes of a 4-channel PNG."""
    if image_format == "jpeg":
        jpeg: bytes = simplejpeg.encode_jpeg(picture, quality=JPEG_QUALITY, colorsubsampling="420")
        return jpeg
    if picture.dtype == np.float32:
        # The bits of depth have runs of zeros, which OpenCV's default finds.
        picture = cv2.cvtColor(np.ascontiguousarray(picture).view(np.uint8), cv2.COLOR_RGBA2BGRA)
        return cv2.imencode(".png", picture)[1].tobytes()
    if picture.shape[-1] == 3:
        picture = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    # Noisy pictures have nothing to match.
    options = [cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_HUFFMAN_ONLY]
    return cv2.imencode(".png", picture, options)[1].tobytes()
