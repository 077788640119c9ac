"""One generated episode: a value of the right kind for every feature that the dataset declares."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from convert.sample.motion import Kinematics
from convert.sample.record import Column
from convert.sample.scene import Scene
from convert.sample.source import SampleSource
from convert.source.features import Feature

_PICTURE_SIDE = 32
"""A tensor with two dimensions of at least this size is a picture (depth or labels), not a matrix."""
_LAST_STEP = slice(-1, None)
_FLAGS = {
    "is_first": slice(1),
    "is_last": _LAST_STEP,
    "is_terminal": _LAST_STEP,
    "reward": _LAST_STEP,
    "discount": slice(None),
}
"""Steps in which a flag is 1."""


def seeded(seed: int, *name_parts: str) -> np.random.Generator:
    """Return random numbers that depend on a seed and on names."""
    return np.random.default_rng([seed, *(zlib.crc32(part.encode()) for part in name_parts)])


class Episode:
    """One episode; the same arguments give the same values.

    Each episode of each split has its own scene; a shorter one shows the beginning of a longer one.
    """

    def __init__(self, source: SampleSource, split: str, *, episode_number: int, num_steps: int, seed: int) -> None:
        self._source, self._number, self._steps = source, episode_number, num_steps
        self._spec, self._hints = source.spec, source.hints
        self._rng = generator = seeded(seed, self._spec.tfds_name, split, str(episode_number))
        self._scene = Scene(generator, pace=37.0 if self._hints["snapshots"] else 1.0)
        self._kinematics = Kinematics(source, self._scene.motion, num_steps=num_steps, generator=generator)
        self._cameras = {camera.path: camera for camera in self._spec.cameras.values()}
        # Not format(): instructions of vima have their own braces.
        instruction_text = str(_turn(self._hints["instructions"], episode_number)).replace("{thing}", self._scene.thing)
        self._texts = {
            "thing": self._scene.thing,
            "instruction": instruction_text,
            "paraphrase": f"please {instruction_text[:1].lower()}{instruction_text[1:]}",
            "dataset": self._spec.tfds_name,
            "split": split,
            "episode": str(episode_number),
            "outcome": "failure" if episode_number % 3 == 2 else "success",
        }

    def columns(self) -> dict[str, Column]:
        """Return the columns of the record."""
        return {name: column for feature in self._source.features for name, column in self._columns(feature).items()}

    def _columns(self, feature: Feature) -> dict[str, Column]:
        """Return the columns of a feature: several for sequences inside the steps."""
        path, num_rows = (feature.name, self._steps) if feature.level == "step" else (f"/{feature.path}", 1)
        hints = self._hints["features"]
        hint = hints.get(path, hints.get(path.rsplit("/", 1)[-1]))
        hint = _turn(hint, self._number) if isinstance(hint, list) else hint
        shape: Any = feature.shape
        are_pictures = feature.dtype != "string" and len(shape) >= 2 and min(shape[:2]) >= _PICTURE_SIDE
        if feature.sequences:
            return self._sequences(feature, path, num_rows=num_rows, hint=hint or {}, are_pictures=are_pictures)
        values: Column
        if feature.dtype == "string":
            values = self._words(path, hint, num_rows)
        elif feature.kind == "image":
            is_jpeg = path in self._cameras and self._cameras[path].storage == "jpeg"
            values = [_encode(self._picture(feature, path, step), as_jpeg=is_jpeg) for step in range(num_rows)]
        elif are_pictures:
            values = np.array([self._picture(feature, path, step) for step in range(num_rows)], feature.dtype)
        else:
            values = self._numbers(feature, path, hint, num_rows)
            if feature.encoding != "none":
                values = [zlib.compress(row) if feature.encoding == "zlib" else row.tobytes() for row in values]
        return {feature.path: values}

    def _words(self, path: str, hint: Any, num_rows: int) -> list[bytes]:
        instruction = self._spec.instruction
        if hint is None:
            is_instruction = instruction is not None and path in (instruction.path, *instruction.alternatives)
            hint = "{instruction}" if is_instruction else f"{path.rsplit('/', 1)[-1]} {self._number}"
        choices = hint["steps"] if isinstance(hint, dict) else [hint]
        texts = [str(_turn(choices, self._number + number)) for number in range(num_rows)]
        return [text.format(**self._texts).encode() for text in texts]

    def _picture(self, feature: Feature, path: str, step: int) -> NDArray:
        """Return the colours, depth or labels of a step, in the feature's shape and dtype."""
        shape: Any = feature.shape
        camera, size = self._cameras.get(path), {"height": shape[0], "width": shape[1]}
        if feature.dtype == "uint8" and shape[2:] != (3,):
            return self._scene.labels(step, path, **size).reshape(shape)
        if path in self._hints["blank"]:
            return np.full(shape, 114, np.uint8)
        picture = self._scene.colour(step, path, **size)
        if feature.dtype != "uint8":
            # Darker is farther. A multiple of 1/1024 m is exact in float32 and, as maniskill stores it, in uint16.
            depth = np.uint16(1200) - picture[:, :, 1].reshape(shape)
            unit = np.float32(1 if camera and camera.millimetres == 1 else 1024)
            return depth if feature.dtype == "uint16" else depth.astype(np.float32) / unit
        return np.ascontiguousarray(picture[:, :, ::-1]) if camera and camera.channels == "bgr" else picture

    def _numbers(self, feature: Feature, path: str, hint: Any, num_rows: int) -> NDArray:
        """Return values [rows, *shape] in the feature's dtype; float64 holds what float32 can, as in records."""
        num_values, last_component, spec = feature.size or 1, path.rsplit("/", 1)[-1], self._spec
        codes = list(self._texts["instruction"].encode()[:num_values])
        values: NDArray = np.zeros((num_rows, num_values))
        if isinstance(hint, dict):
            values.T[:] = [_turn(hint["steps"], step) for step in range(num_rows)]
        elif hint is not None:
            values[:] = hint
        elif spec.instruction and spec.instruction.encoding == "utf8_codes" and path == spec.instruction.path:
            values[:, : len(codes)] = codes
        elif last_component in _FLAGS:
            values[_FLAGS[last_component]] = 1
        elif last_component in ("sequence_length", "n_transitions", "num_steps"):
            values[:] = self._steps
        elif "embedding" in last_component:
            values[:] = seeded(0, self._texts["instruction"]).standard_normal(num_values) / np.sqrt(num_values)
        elif feature.level == "episode":
            values = self._rng.uniform(-1, 1, (1, num_values))
        else:
            values = self._kinematics.of_feature(path, num_values)
        if path.startswith(tuple(self._hints["first_step_zero"])):
            values[:1] = 0
        return _cast(values, feature)

    def _sequences(
        self, feature: Feature, path: str, *, num_rows: int, hint: Any, are_pictures: bool
    ) -> dict[str, Column]:
        """Return a feature with sequences: counts come from the configuration, items from it or the scene."""
        length_choices = hint.get("counts") or [[2, 1, 3]] * len(feature.sequences)
        item_choices = hint.get("items") or range(4)
        lengths: list[list[int]] = [[] for _ in length_choices]
        items: list[int] = []
        for row in range(num_rows):
            first = self._number if hint.get("same", feature.level == "episode") else self._number + row
            row_lengths = [1]
            for level_lengths, widths in zip(lengths, length_choices, strict=True):
                row_lengths = [_turn(widths, first + position) for position in range(sum(row_lengths))]
                level_lengths += row_lengths
            items += range(sum(row_lengths))
        values: Column
        if feature.dtype == "string":
            values = [str(_turn(item_choices, item)).encode() for item in items]
        elif are_pictures:
            # Prompt images are the same on every step; they show other moments of the scene.
            pictures = {item: self._picture(feature, path, 1000 + item) for item in set(items)}
            values = np.array([pictures[item] for item in items], feature.dtype)
        else:
            values = _cast(np.array([_turn(item_choices, item) for item in items], np.float64), feature)
        if feature.level == "episode":
            return {feature.path: values}
        columns: dict[str, Column] = {f"{feature.path}/ragged_flat_values": values}
        for level, counts in enumerate(lengths):
            columns[f"{feature.path}/ragged_row_lengths_{level}"] = np.array(counts, np.int64)
        return columns


def _turn(choices: Sequence[Any], position: int) -> Any:
    return choices[position % len(choices)]


def _cast(values: NDArray, feature: Feature) -> NDArray:
    """Return values [N, *shape] in the feature's dtype."""
    numpy_dtype = np.dtype(feature.dtype)
    if numpy_dtype.kind == "b":
        values = values > 0.5
    elif numpy_dtype.kind in "iu":
        values = np.rint(values).clip(0 if numpy_dtype.kind == "u" else None)
    feature_shape: Any = feature.shape
    return values.astype(np.float32).astype(numpy_dtype).reshape(-1, *feature_shape)


def _encode(picture: NDArray, *, as_jpeg: bool) -> bytes:
    """Store a picture as TFDS would: RGB as JPEG or PNG, float32 as the bytes of a 4-channel PNG."""
    if as_jpeg:
        return bytes(simplejpeg.encode_jpeg(picture, quality=95, colorsubsampling="420"))
    if picture.dtype == np.float32:
        picture = np.ascontiguousarray(picture).view(np.uint8)
    if (colour_conversion := {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}.get(picture.shape[2])) is not None:
        picture = cv2.cvtColor(picture, colour_conversion)
    # Noisy pictures have nothing to match.
    return cv2.imencode(".png", picture, [cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_HUFFMAN_ONLY])[1].tobytes()
