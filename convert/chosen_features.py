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

    def find(self, feature_path: str, role: str) -> Feature:
        """Return a feature; raises SourceError with the closest ones if it does not exist."""
        if feature_path in self._features:
            self._named.add(feature_path)
            return self._features[feature_path]
        last_component = feature_path.rsplit("/", 1)[-1]
        similar_paths = [path for path in self._features if path.rsplit("/", 1)[-1] == last_component]
        similar_paths = similar_paths or difflib.get_close_matches(feature_path, self._features, 1)
        hint = closest(feature_path, self._features, noun="features")
        hint = f"did you mean {similar_paths[0]!r}?" if similar_paths else hint
        raise SourceError(f"{self._spec.name}: {role} {feature_path!r} is not in {self._file}; {hint}")

    def camera(self, camera: Camera) -> Feature:
        """Return the feature of a camera, which must hold pictures or depth."""
        feature = self.find(camera.path, "camera")
        if camera.is_depth:
            return self._depth(camera, feature)
        is_raw = feature.kind == "tensor" and len(feature.shape) in (2, 3) and feature.encoding == "none"
        if feature.dtype == "uint8" and (is_raw or (feature.kind == "image" and not feature.sequences)):
            return feature
        images = [other for other in self._features.values() if other.kind == "image" and other.level == "step"]
        pictures = ", ".join(notation(other) for other in images if other.dtype == "uint8")
        raise self._unfit(f"camera {camera.path}", feature, f"not a picture; pictures are {pictures}")

    def _depth(self, camera: Camera, feature: Feature) -> Feature:
        numpy_dtype = np.dtype("uint8" if feature.dtype == "string" else feature.dtype)
        is_flat = len(feature.shape) == 2 or feature.shape[2:] in ((1,), (3,))
        if not is_flat or feature.sequences or numpy_dtype.kind not in "uif" or numpy_dtype.itemsize == 1:
            raise self._unfit(f"depth camera {camera.path}", feature, "expected numbers of 16 bits or more, or a PNG")
        return feature

    def language(self) -> tuple[Feature, ...]:
        """Return the features of the instruction."""
        instruction = self._spec.instruction
        if instruction is None:
            return ()
        paths = (instruction.path, *instruction.alternatives)
        features = tuple(self.find(path, "instruction") for path in paths)
        for feature in features:
            is_text = feature.dtype == "string" and feature.size and len(feature.sequences) <= 1
            is_codes = feature.dtype.startswith(("int", "uint")) and len(feature.shape) == 1
            if not (is_text if instruction.encoding == "text" else is_codes):
                problem = f"which encoding {instruction.encoding} does not read"
                raise self._unfit(f"instruction {feature.name}", feature, problem)
        return features

    def success(self) -> Feature | None:
        """Return the feature that holds the success; None if there is none, or it is a column ``success`` already."""
        if self._spec.success_path is None:
            return None
        feature = self.find(self._spec.success_path, "success_path")
        if feature.size != 1 or feature.sequences:
            raise self._unfit(f"success_path {feature.name}", feature, "neither one number nor one text")
        return None if f"/{SUCCESS.name}" in self._features else feature

    def check_part(self, part: Part | Term, feature_path: str) -> None:
        """Raise UsageError unless the feature of a part has its values and is not left out."""
        feature = self.find(feature_path, "action or state")
        if feature.dtype == "string" or feature.size is None or feature.sequences:
            raise self._unfit(feature_path, feature, "not a vector of numbers")
        if feature.size != part.dims if part.select is None else max(part.select) >= feature.size:
            taken = f"the registry takes {f'values {list(part.select)}' if part.select else f'all {part.dims}'}"
            found = f"{feature_path} has {feature.size} values {feature.shape}"
            raise UsageError(f"{self._spec.name}: {found}; {taken}")
        if self._spec.leaves_out(feature_path):
            reason = f"is part of action or state, so it cannot be left out ({', '.join(self._spec.leave_out)})"
            raise UsageError(f"{self._spec.name}: {feature_path} {reason}")

    def columns(self, language: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return the features that become columns: no pictures, coded instructions or what the entry leaves out.

        A feature without values is none, and one that varies is only one if the entry names it.
        """
        camera_paths = {camera.path for camera in self._spec.cameras.values()}
        has_codes = self._spec.instruction is not None and self._spec.instruction.encoding == "utf8_codes"
        chosen_features = []
        for path, feature in self._features.items():
            is_column = feature.kind != "image" and feature.size != 0 and (path in self._named or not feature.varies)
            is_left_out = path in camera_paths or self._spec.leaves_out(path) or (has_codes and feature in language)
            if is_column and not is_left_out:
                chosen_features.append(feature)
        for feature in (*chosen_features, *language):
            if not feature.size:
                reason = f"{notation(feature)} has the shape {feature.shape}; columns need a fixed size of 1 or more"
                remedy = "Leave it out (--leave-out, or leave_out in the registry)"
                raise UsageError(f"{self._spec.name}: {reason}. {remedy}")
        if self._spec.leave_out:
            self._check_widths(chosen_features)
        return tuple(chosen_features)

    def _check_widths(self, columns: Iterable[Feature]) -> None:
        """Raise UsageError for columns of steps that are wide, unless the registry says so or uses their numbers."""
        spec = self._spec
        part_paths = {part.path for vector in spec.vectors.values() for part in vector_inputs(vector)}
        for feature in columns:
            feature_name, num_values = feature.name, feature.size or 0
            is_wanted = feature.level != "step" or feature_name in part_paths or spec.is_wide(feature_name)
            if num_values > WIDE and not is_wanted:
                raise UsageError(
                    f"{spec.name}: {feature_name} is {feature.dtype} {feature.shape}: the index would have "
                    f"{num_values:,} numbers of it a step, and has at most {WIDE:,} unasked; in the registry, write "
                    f"`leave_out: [{feature_name}]` to do without it or `wide: [{feature_name}]` to keep it, or keep "
                    "all with --leave-out none"
                )

    def _unfit(self, subject: str, feature: Feature, problem: str) -> UsageError:
        return UsageError(f"{self._spec.name}: {subject} is {feature.dtype} {feature.shape}, {problem}")
