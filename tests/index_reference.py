"""What the index of a conversion has to hold, by the registry and by what TFDS decodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from convert.registry import DatasetSpec
from stream.schema import feature_column
from tests.converted_dataset import ConvertedDataset
from tests.tfds_reference import Leaf, Reference, ReferenceEpisode


def is_kept(leaf: Leaf, spec: DatasetSpec) -> bool:
    """Whether a leaf belongs into the index: all but pictures, what the registry leaves out, and encoded texts."""
    pictures = {camera.path for camera in spec.cameras.values()}
    return not (leaf.is_image or leaf.name in pictures or spec.leaves_out(leaf.name) or leaf.name in codes(spec))


def codes(spec: DatasetSpec) -> tuple[str, ...]:
    """The instruction, where it is stored as numbers."""
    instruction = spec.instruction
    return (instruction.path,) if instruction and instruction.encoding == "utf8_codes" else ()


def column_name(leaf: Leaf) -> str:
    """The path; an underscore is added where the table has a column of its own with that name."""
    return feature_column("steps" if leaf.of_steps else "episodes", leaf.name.removeprefix("/"))


def paired_rows(
    converted: ConvertedDataset, reference: Reference, leaf: Leaf
) -> Iterator[tuple[ReferenceEpisode, list[Any], list[Any]]]:
    """For each episode what the index has of a feature and what TFDS decodes, row by row."""
    for split in converted.splits.values():
        table = split.steps if leaf.of_steps else split.episodes
        values = table[column_name(leaf)].to_pylist()
        for number, row in enumerate(split.episodes.to_pylist()):
            episode = reference.episodes[row["episode_id"]]
            if leaf.of_steps:
                found = values[row["first_steps_row"] : row["first_steps_row"] + row["num_steps"]]
                wanted = [step[leaf.name] for step in episode.steps]
            else:
                found, wanted = [values[number]], [episode.values[leaf.name]]
            yield episode, found, [plain(value, leaf.depth) for value in wanted]


def plain(value: Any, depth: int) -> Any:
    """A value in Python's types: `depth` sequences around flat lists or scalars."""
    if hasattr(value, "to_list"):
        value = value.to_list()
    if depth:
        return [plain(child, depth - 1) for child in value]
    if isinstance(value, bytes):
        return value.rstrip(b"\0").decode()
    array = np.asarray(value)
    return array.ravel().tolist() if array.ndim else array.item()


def unequal(converted: ConvertedDataset, reference: Reference, leaves: list[Leaf]) -> list[str]:
    """The features, and their episodes, whose columns are not what TFDS decodes."""
    return [
        f"{leaf.name} of {episode.tfds_id}"
        for leaf in leaves
        for episode, found, wanted in paired_rows(converted, reference, leaf)
        if found != wanted
    ]


def instruction_of(values: dict[str, Any], episode: dict[str, Any], spec: DatasetSpec) -> str:
    """The instruction of a step as TFDS decodes it: the first of the registry's features that is not empty."""
    assert spec.instruction is not None
    for path in (spec.instruction.path, *spec.instruction.alternatives):
        value = episode[path] if path.startswith("/") else values[path]
        raw = value.rstrip(b"\0") if isinstance(value, bytes) else bytes(value.tolist()).split(b"\0")[0]
        if raw:
            return raw.decode()
    return ""
