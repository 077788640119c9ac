"""Features of a source by the paths of a registry entry, checked for what the entry takes of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import numpy as np

from convert.errors import SourceError, UsageError
from convert.index.derived import vector_inputs
from convert.registry.dataset import WIDE, Camera, DatasetSpec, Part
from convert.registry.space import Term
from convert.source.features import SUCCESS, Feature
from convert.source.protocol import Source
from stream.base.errors import closest


def notation(feature: Feature) -> str:
    """Return the path of a feature in the registry's notation: a leading slash marks episode features."""
    return feature.name if feature.level == "step" else f"/{feature.path}"


class FeatureFinder:
    """The features of a source by the paths of a registry entry."""

    def __init__(self, spec: DatasetSpec, source: Source) -> None:
        self._spec = spec
        self._file = f"{source.path}/{source.metadata[-1]}"
        self._named: set[str] = set()
        self._features = {notation(feature): feature for feature in source.features.values()}

    def find(self, path: str, role: str) -> Feature:
        """Return a feature; raises SourceError with the closest ones if it does not exist."""
        if path in self._features:
            self._named.add(path)
            return self._features[path]
        last = path.rsplit("/", 1)[-1]
        same = [name for name in self._features if name.rsplit("/", 1)[-1] == last]
        same = same or difflib.get_close_matches(path, self._features, 1)
        hint = f"did you mean {same[0]!r}?" if same else closest(path, self._features, noun="features")
        raise SourceError(f"{self._spec.name}: {role} {path!r} is not in {self._file}; {hint}")

    def camera(self, camera: Camera) -> Feature:
        """Return the feature of a camera, which must hold pictures or depth."""
        feature = self.find(camera.path, "camera")
        if camera.is_depth:
            return self._depth(camera, feature)
        raw = feature.kind == "tensor" and len(feature.shape) in (2, 3) and feature.encoding == "none"
        if feature.dtype == "uint8" and (raw or (feature.kind == "image" and not feature.sequences)):
            return feature
        pictures = [
            name
            for name, other in self._features.items()
            if other.kind == "image" and other.dtype == "uint8" and other.level == "step"
        ]
        raise self._unfit(f"camera {camera.path}", feature, f"not a picture; pictures are {', '.join(pictures)}")

    def _depth(self, camera: Camera, feature: Feature) -> Feature:
        dtype = np.dtype("uint8" if feature.dtype == "string" else feature.dtype)
        flat = len(feature.shape) == 2 or feature.shape[2:] in ((1,), (3,))
        if not flat or feature.sequences or dtype.kind not in "uif" or dtype.itemsize == 1:
            raise self._unfit(f"depth camera {camera.path}", feature, "expected numbers of 16 bits or more, or a PNG")
        return feature

    def language(self) -> tuple[Feature, ...]:
        """Return the features of the instruction."""
        instruction = self._spec.instruction
        if instruction is None:
            return ()
        found = tuple(self.find(path, "instruction") for path in (instruction.path, *instruction.alternatives))
        for feature in found:
            is_text = feature.dtype == "string" and feature.size and len(feature.sequences) <= 1
            is_codes = feature.dtype.startswith(("int", "uint")) and len(feature.shape) == 1
            if not (is_text if instruction.encoding == "text" else is_codes):
                fault = f"which encoding {instruction.encoding} does not read"
                raise self._unfit(f"instruction {feature.name}", feature, fault)
        return found

    def success(self) -> Feature | None:
        """Return the feature that tells the success; None if there is none, or it is a column ``success`` already."""
        if self._spec.success_path is None:
            return None
        feature = self.find(self._spec.success_path, "success_path")
        if feature.size != 1 or feature.sequences:
            raise self._unfit(f"success_path {feature.name}", feature, "neither one number nor one text")
        return None if f"/{SUCCESS.name}" in self._features else feature

    def check_part(self, part: Part | Term, path: str) -> None:
        """Raise UsageError unless the feature of a part has its values and is not left out."""
        feature = self.find(path, "action or state")
        if feature.dtype == "string" or feature.size is None or feature.sequences:
            raise self._unfit(path, feature, "not a vector of numbers")
        if feature.size != part.dims if part.select is None else max(part.select) >= feature.size:
            wanted = f"values {list(part.select)}" if part.select else f"all {part.dims}"
            raise UsageError(
                f"{self._spec.name}: {path} has {feature.size} values {feature.shape}; the registry takes {wanted}"
            )
        if self._spec.leaves_out(path):
            raise UsageError(
                f"{self._spec.name}: {path} is part of action or state, so it cannot be left out "
                f"({', '.join(self._spec.leave_out)})"
            )

    def columns(self, language: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return the features that become columns.

        Left out are pictures, features without values, what the entry leaves out, coded instructions, and what varies
        unless the entry names it.
        """
        cameras = {camera.path for camera in self._spec.cameras.values()}
        codes = self._spec.instruction is not None and self._spec.instruction.encoding == "utf8_codes"
        found = tuple(
            feature
            for name, feature in self._features.items()
            if feature.kind != "image"
            and feature.size != 0
            and name not in cameras
            and not self._spec.leaves_out(name)
            and (name in self._named or not feature.varies)
            and not (codes and feature in language)
        )
        for feature in (*found, *language):
            if not feature.size:
                raise UsageError(
                    f"{self._spec.name}: {notation(feature)} has the shape {feature.shape}; columns need a fixed size "
                    "of 1 or more. Leave it out (--leave-out, or leave_out in the registry)"
                )
        if self._spec.leave_out:
            self._check_widths(found)
        return found

    def _check_widths(self, columns: Iterable[Feature]) -> None:
        """Raise UsageError for columns of steps that are wide, unless the registry says so or uses their numbers."""
        spec = self._spec
        parts = {part.path for vector in spec.vectors.values() for part in vector_inputs(vector)}
        for feature in columns:
            name, size = feature.name, feature.size or 0
            if feature.level == "step" and size > WIDE and name not in parts and not spec.is_wide(name):
                raise UsageError(
                    f"{spec.name}: {name} is {feature.dtype} {feature.shape}: the index would have {size:,} numbers of "
                    f"it a step, and has at most {WIDE:,} unasked; in the registry, write `leave_out: [{name}]` to do "
                    f"without it or `wide: [{name}]` to keep it, or keep all with --leave-out none"
                )

    def _unfit(self, name: str, feature: Feature, fault: str) -> UsageError:
        return UsageError(f"{self._spec.name}: {name} is {feature.dtype} {feature.shape}, {fault}")
