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
_LAST = slice(-1, None)
_FLAGS = {"is_first": slice(1), "is_last": _LAST, "is_terminal": _LAST, "reward": _LAST, "discount": slice(None)}
"""Steps in which a flag is 1."""


def seeded(seed: int, *names: str) -> np.random.Generator:
    """Return random numbers that depend on a seed and on names."""
    return np.random.default_rng([seed, *(zlib.crc32(name.encode()) for name in names)])


class Episode:
    """One episode; the same arguments give the same values.

    Each episode of each split has its own scene; a shorter one shows the beginning of a longer one.
    """

    def __init__(self, source: SampleSource, split: str, *, number: int, steps: int, seed: int) -> None:
        self._source, self._number, self._steps = source, number, steps
        self._spec, self._hints = source.spec, source.hints
        self._rng = rng = seeded(seed, self._spec.tfds_name, split, str(number))
        self._scene = Scene(rng, pace=37.0 if self._hints["snapshots"] else 1.0)
        self._kinematics = Kinematics(source, self._scene.motion, steps=steps, rng=rng)
        self._cameras = {camera.path: camera for camera in self._spec.cameras.values()}
        # Not format(): instructions of vima have their own braces.
        text = str(_turn(self._hints["instructions"], number)).replace("{thing}", self._scene.thing)
        self._texts = {
            "thing": self._scene.thing,
            "instruction": text,
            "paraphrase": f"please {text[:1].lower()}{text[1:]}",
            "dataset": self._spec.tfds_name,
            "split": split,
            "episode": str(number),
            "outcome": "failure" if number % 3 == 2 else "success",
        }

    def columns(self) -> dict[str, Column]:
        """Return the columns of the record."""
        return {name: column for f in self._source.features for name, column in self._columns(f).items()}

    def _columns(self, feature: Feature) -> dict[str, Column]:
        """Return the columns of a feature: several for sequences inside the steps."""
        path = feature.name if feature.level == "step" else f"/{feature.path}"
        rows = self._steps if feature.level == "step" else 1
        hints = self._hints["features"]
        hint = hints.get(path, hints.get(path.rsplit("/", 1)[-1]))
        hint = _turn(hint, self._number) if isinstance(hint, list) else hint
        shape: Any = feature.shape
        pictures = feature.dtype != "string" and len(shape) >= 2 and min(shape[:2]) >= _PICTURE_SIDE
        if feature.sequences:
            return self._sequences(feature, path, rows=rows, hint=hint or {}, pictures=pictures)
        values: Column
        if feature.dtype == "string":
            values = self._words(path, hint, rows)
        elif feature.kind == "image":
            jpeg = path in self._cameras and self._cameras[path].storage == "jpeg"
            values = [_encode(self._picture(feature, path, step), jpeg=jpeg) for step in range(rows)]
        elif pictures:
            values = np.array([self._picture(feature, path, step) for step in range(rows)], feature.dtype)
        else:
            values = self._numbers(feature, path, hint, rows)
            if feature.encoding != "none":
                values = [zlib.compress(row) if feature.encoding == "zlib" else row.tobytes() for row in values]
        return {feature.path: values}

    def _words(self, path: str, hint: Any, rows: int) -> list[bytes]:
        instruction = self._spec.instruction
        if hint is None:
            said = instruction is not None and path in (instruction.path, *instruction.alternatives)
            hint = "{instruction}" if said else f"{path.rsplit('/', 1)[-1]} {self._number}"
        texts = hint["steps"] if isinstance(hint, dict) else [hint]
        return [str(_turn(texts, self._number + row)).format(**self._texts).encode() for row in range(rows)]

    def _picture(self, feature: Feature, path: str, step: int) -> NDArray:
        """Return the colours, depth or labels of a step, in the feature's shape and dtype."""
        shape: Any = feature.shape
        size = {"height": shape[0], "width": shape[1]}
        if feature.dtype == "uint8" and shape[2:] != (3,):
            return self._scene.labels(step, path, **size).reshape(shape)
        if path in self._hints["blank"]:
            return np.full(shape, 114, np.uint8)
        picture = self._scene.colour(step, path, **size)
        if feature.dtype != "uint8":
            # Darker is farther. A multiple of 1/1024 m is exact in float32 and, as maniskill stores it, in uint16.
            depth = np.uint16(1200) - picture[:, :, 1].reshape(shape)
            in_mm = path in self._cameras and self._cameras[path].millimetres == 1
            return depth if feature.dtype == "uint16" else depth.astype(np.float32) / np.float32(1 if in_mm else 1024)
        swapped = path in self._cameras and self._cameras[path].channels == "bgr"
        return np.ascontiguousarray(picture[:, :, ::-1]) if swapped else picture

    def _numbers(self, feature: Feature, path: str, hint: Any, rows: int) -> NDArray:
        """Return values [rows, *shape] in the feature's dtype; float64 holds what float32 can, as in records."""
        size, name, spec = feature.size or 1, path.rsplit("/", 1)[-1], self._spec
        text = self._texts["instruction"].encode()
        values: NDArray = np.zeros((rows, size))
        if hint is not None:
            values.T[:] = [_turn(hint["steps"], step) for step in range(rows)] if isinstance(hint, dict) else hint
        elif spec.instruction and spec.instruction.encoding == "utf8_codes" and path == spec.instruction.path:
            values[:, : len(text)] = list(text[:size])
        elif name in _FLAGS:
            values[_FLAGS[name]] = 1
        elif name in ("sequence_length", "n_transitions", "num_steps"):
            values[:] = self._steps
        elif "embedding" in name:
            values[:] = seeded(0, self._texts["instruction"]).standard_normal(size) / np.sqrt(size)
        elif feature.level == "episode":
            values = self._rng.uniform(-1, 1, (1, size))
        else:
            values = self._kinematics.of_feature(path, size)
        if path.startswith(tuple(self._hints["first_step_zero"])):
            values[:1] = 0
        return _cast(values, feature)

    def _sequences(self, feature: Feature, path: str, *, rows: int, hint: Any, pictures: bool) -> dict[str, Column]:
        """Return a feature with sequences: counts come from the configuration, items from it or the scene."""
        counts, choices = hint.get("counts") or [[2, 1, 3]] * len(feature.sequences), hint.get("items") or range(4)
        lengths: list[list[int]] = [[] for _ in counts]
        items: list[int] = []
        for row in range(rows):
            at = self._number if hint.get("same", feature.level == "episode") else self._number + row
            row_lengths = [1]
            for level, widths in zip(lengths, counts, strict=True):
                row_lengths = [_turn(widths, at + place) for place in range(sum(row_lengths))]
                level += row_lengths
            items += range(sum(row_lengths))
        values: Column
        if feature.dtype == "string":
            values = [str(_turn(choices, item)).encode() for item in items]
        elif pictures:
            # Prompt images are the same on every step; they show other moments of the scene.
            known = {item: self._picture(feature, path, 1000 + item) for item in set(items)}
            values = np.array([known[item] for item in items], feature.dtype)
        else:
            values = _cast(np.array([_turn(choices, item) for item in items], np.float64), feature)
        if feature.level == "episode":
            return {feature.path: values}
        ragged = {f"ragged_row_lengths_{level}": np.array(counted, np.int64) for level, counted in enumerate(lengths)}
        return {f"{feature.path}/{name}": column for name, column in {"ragged_flat_values": values, **ragged}.items()}


def _turn(choices: Sequence[Any], position: int) -> Any:
    return choices[position % len(choices)]


def _cast(values: NDArray, feature: Feature) -> NDArray:
    """Return values [N, *shape] in the feature's dtype."""
    dtype = np.dtype(feature.dtype)
    if dtype.kind == "b":
        values = values > 0.5
    elif dtype.kind in "iu":
        values = np.rint(values).clip(0 if dtype.kind == "u" else None)
    shape: Any = feature.shape
    return values.astype(np.float32).astype(dtype).reshape(-1, *shape)


def _encode(picture: NDArray, *, jpeg: bool) -> bytes:
    """Store a picture as TFDS would: RGB as JPEG or PNG, float32 as the bytes of a 4-channel PNG."""
    if jpeg:
        return bytes(simplejpeg.encode_jpeg(picture, quality=95, colorsubsampling="420"))
    if picture.dtype == np.float32:
        picture = np.ascontiguousarray(picture).view(np.uint8)
    if (swap := {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}.get(picture.shape[2])) is not None:
        picture = cv2.cvtColor(picture, swap)
    # Noisy pictures have nothing to match.
    return cv2.imencode(".png", picture, [cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_HUFFMAN_ONLY])[1].tobytes()
