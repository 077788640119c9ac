"""Datasets and mixtures by name, read from the packaged ``configs`` and from files of the user."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, model_validator

from convert.registry.config_file import ConfigError, Document, dotted, shown
from convert.registry.dataset import NAME, Camera, DatasetSpec, Entry, Gripper, Instruction, Offset, Part, Text, unique
from stream.storage.configs import CONFIGS
from stream.storage.errors import closest

__all__ = [
    "Camera",
    "ConfigError",
    "DatasetSpec",
    "Gripper",
    "Instruction",
    "Mixture",
    "MixtureMember",
    "Part",
    "Registry",
    "Selected",
    "SizePower",
    "load_registry",
]

_BOUND = r"-?[0-9][0-9_]*(\.[0-9]+)?(%|shard)?"
_SPLIT = re.compile(rf"[A-Za-z0-9_-]+(\[({_BOUND})?(:({_BOUND})?)?\])?")
_MIXTURE_KEYS = ("description", "members")
_FILE_KEYS = ("datasets", "mixtures")


def _weight(value: object) -> float | Literal["size"] | SizePower:
    if value == "size":
        return "size"
    if isinstance(value, SizePower):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    if isinstance(value, dict):
        try:
            return SizePower.model_validate(value)
        except ValidationError as fault:
            detail = fault.errors()[0]
            raise ValueError(f"{dotted(detail['loc'])}: {detail['msg']}; keys: size_power, factor") from None
    raise ValueError(
        f"found {shown(value)}; expected a finite number >= 0 (0 leaves the member out), `size`, or "
        "{size_power: p} with p from 0 (all equal) to 1 (by size) and beyond"
    )


def _split_expression(text: str) -> str:
    if not all(_SPLIT.fullmatch(term) for term in _terms(text)):
        raise ValueError(f"found {shown(text)}; expected a TFDS split such as train, train[:90%] or train+val[10:]")
    return text


def _terms(split: str) -> list[str]:
    return [term.strip() for term in split.split("+")]


SplitExpression = Annotated[str, AfterValidator(_split_expression)]


class SizePower(Entry):
    """A weight of ``factor * size ** size_power``, size in pairs: power 1 is by size, 0 is equal."""

    size_power: Annotated[float, Field(strict=True, ge=0, le=4)] = Field(description="The power.")
    factor: Annotated[float, Field(strict=True, gt=0, lt=1e12)] = Field(default=1.0, description="Multiplies it.")


class MixtureMember(Entry):
    """A dataset in a mixture."""

    dataset: Text = Field(description="Name in the registry.")
    weight: Annotated[float | Literal["size"] | SizePower, PlainValidator(_weight)] = Field(
        description="Relative to the other members: a number, `size`, or {size_power: p, factor: f}."
    )
    offset: Offset | None = Field(default=None, description="Distance of a pair; default that of the dataset.")
    splits: dict[Text, SplitExpression] = Field(
        default_factory=lambda: {"train": "train[:90%]", "val": "train[90%:]"},
        description="Which TFDS split expression each role of the mixture reads.",
    )


class Mixture(Entry):
    """Datasets and how often each is drawn."""

    name: Text = Field(description="Name in this registry.")
    description: Text = Field(description="One sentence or more.")
    members: tuple[MixtureMember, ...] = Field(min_length=1, description="Each dataset at most once.")

    @model_validator(mode="after")
    def _consistent(self) -> Mixture:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"the name {shown(self.name)} is not of letters, digits and ._-")
        unique(tuple(member.dataset for member in self.members))
        if all(member.weight == 0 for member in self.members):
            raise ValueError("all weights are 0")
        return self


class Selected(NamedTuple):
    """A dataset that was asked for, and how."""

    member: MixtureMember
    spec: DatasetSpec

    @property
    def offset(self) -> int | str:
        """The pair offset: the member's own, else the dataset's default."""
        return self.spec.offset if self.member.offset is None else self.member.offset


class Registry(Entry):
    """The datasets and mixtures by name."""

    datasets: dict[str, DatasetSpec]
    mixtures: dict[str, Mixture]

    def dataset(self, name: str) -> DatasetSpec:
        """Find a dataset by its name, or by its TFDS name where only one dataset has that.

        Raises:
            ConfigError: unknown, or a TFDS name of several datasets; lists the closest names.
        """
        if name in self.datasets:
            return self.datasets[name]
        hits = [spec for spec in self.datasets.values() if spec.tfds_name == name]
        if len(hits) == 1:
            return hits[0]
        if hits:
            raise ConfigError(f"{name} is the TFDS name of {', '.join(spec.name for spec in hits)}; name one of these")
        raise ConfigError(f"unknown dataset {shown(name)}; {closest(name, self._dataset_names(), noun='datasets')}")

    def resolve(self, text: str) -> list[Selected]:
        """Find what ``--datasets`` asks for.

        Args:
            text: the name of a mixture, names of datasets with commas between, or the path of a YAML file: a mixture,
                or a file of datasets and mixtures (then its only mixture, or all its datasets if it has none).

        Raises:
            ConfigError: an unknown or repeated name, a file that cannot be used, or one with several mixtures.
        """
        if text in self.mixtures:
            return self._members(self.mixtures[text])
        if text.endswith((".yaml", ".yml")):
            return self._resolve_file(text)
        names = [name.strip() for name in text.split(",")]
        if len(names) == 1 and names[0] not in self._dataset_names():
            hint = closest(text, {*self.mixtures, *self._dataset_names()}, noun="names")
            raise ConfigError(f"unknown dataset or mixture {shown(text)}; {hint}")
        specs = [self.dataset(name) for name in names]
        for name, count in Counter(spec.name for spec in specs).items():
            if count > 1:
                raise ConfigError(f"dataset {name} is named {count} times; name it once")
        return [_alone(spec) for spec in specs]

    def _resolve_file(self, path: str) -> list[Selected]:
        added, extended = _extend(self, Document(Path(path), name=path))
        if len(added.mixtures) > 1:
            hint = f"give it as --config {path} and name one as --datasets"
            raise ConfigError(f"has several mixtures ({', '.join(added.mixtures)}); {hint}", file=path)
        if added.mixtures:
            return extended._members(next(iter(added.mixtures.values())))
        if not added.datasets:
            raise ConfigError("has neither datasets nor members of a mixture", file=path)
        return [_alone(spec) for spec in added.datasets.values()]

    def _members(self, mixture: Mixture) -> list[Selected]:
        members = [Selected(member, self.datasets[member.dataset]) for member in mixture.members]
        for member, spec in members:
            for role, split in member.splits.items():
                if fault := _unknown_split(split, spec):
                    raise ConfigError(f"{role}: {fault}", file=mixture.name, field=spec.name)
        return members

    def _dataset_names(self) -> set[str]:
        return {*self.datasets, *(spec.tfds_name for spec in self.datasets.values())}


def load_registry(*, config: Sequence[str | PathLike[str]] = ()) -> Registry:
    """Read the packaged registry and files of the user.

    Args:
        config: YAML files, later ones over earlier ones. Each has ``datasets:`` and ``mixtures:`` (mappings by name),
            or is a mixture itself (``description``, ``members``; its name is that of the file). A dataset or mixture
            that exists already is replaced as a whole.

    Raises:
        ConfigError: a file cannot be read or is not valid; says the file, line and field, and what to do.
    """
    registry = _packaged()
    for path in config:
        registry = _extend(registry, Document(Path(path), name=str(path)))[1]
    return Registry(datasets=dict(registry.datasets), mixtures=dict(registry.mixtures))


@cache
def _packaged() -> Registry:
    folder = CONFIGS
    registry = _extend(_EMPTY, Document(folder.joinpath("datasets.yaml"), name="configs/datasets.yaml"))[1]
    for file in sorted(folder.joinpath("mixtures").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            registry = _extend(registry, Document(file, name=f"configs/mixtures/{file.name}"))[1]
    return registry


def _alone(spec: DatasetSpec) -> Selected:
    return Selected(MixtureMember(dataset=spec.name, weight=1.0), spec)


def _extend(registry: Registry, document: Document) -> tuple[Registry, Registry]:
    """What a file defines, and the registry with it."""
    top = document.mapping()
    keys = _MIXTURE_KEYS if "members" in top else _FILE_KEYS
    for key in top:
        if key not in keys:
            raise document.error(f"unknown key {shown(key)}; {closest(key, keys, noun='known keys')}", key)
    datasets = {name: _dataset(name, document) for name in (document.mapping("datasets") if "datasets" in top else ())}
    known = {**registry.datasets, **datasets}
    mixtures: dict[str, Mixture] = {}
    if "members" in top:
        name = Path(document.name).stem
        mixtures[name] = _mixture(name, document, known=known, field=())
    for name in document.mapping("mixtures") if "mixtures" in top else ():
        mixtures[name] = _mixture(name, document, known=known, field=("mixtures", name))
    extended = Registry(datasets=known, mixtures={**registry.mixtures, **mixtures})
    if both := extended.datasets.keys() & extended.mixtures.keys():
        raise document.error(f"{shown(min(both))} is the name of a dataset and of a mixture; rename one")
    return Registry(datasets=datasets, mixtures=mixtures), extended


def _dataset(name: str, document: Document) -> DatasetSpec:
    content = document.mapping("datasets", name)
    if "name" in content:
        raise document.error("the name is the key of the entry; remove this", "datasets", name, "name")
    return document.validate(DatasetSpec, {"name": name, **content}, "datasets", name)


def _mixture(name: str, document: Document, *, known: dict[str, DatasetSpec], field: tuple[str, ...]) -> Mixture:
    content = document.mapping(*field)
    if "name" in content:
        raise document.error("the name is the key of the entry; remove this", *field, "name")
    datasets = document.mapping(*field, "members") if "members" in content else ()
    members = [_member(dataset, document, known=known, field=(*field, "members", dataset)) for dataset in datasets]
    return document.validate(Mixture, {"name": name, **content, "members": members}, *field)


def _member(name: str, document: Document, *, known: dict[str, DatasetSpec], field: tuple[str, ...]) -> MixtureMember:
    if name not in known:
        other = [spec.name for spec in known.values() if spec.tfds_name == name]
        hint = f"its name here is {' or '.join(other)}" if other else closest(name, known, noun="datasets")
        raise document.error(f"unknown dataset {shown(name)}; {hint}", *field)
    written = document.mapping(*field[:-1])[name]
    alone = isinstance(written, int | float | str) or (isinstance(written, dict) and "size_power" in written)
    content = {"weight": written} if alone else document.mapping(*field)
    if "dataset" in content:
        raise document.error("the dataset is the key of the member; remove this", *field, "dataset")
    member = document.validate(MixtureMember, {"dataset": name, **content}, *field)
    for role, split in member.splits.items():
        if fault := _unknown_split(split, known[name]):
            raise document.error(fault, *field, "splits", role)
    return member


def _unknown_split(text: str, spec: DatasetSpec) -> str:
    """What is wrong with a split expression, if the published splits are known; else nothing."""
    for term in _terms(text):
        name = term.split("[")[0]
        if spec.splits and name not in (*spec.splits, "all"):
            return f"{spec.name} has no split {shown(name)}; {closest(name, spec.splits, noun='splits')}"
    return ""


_EMPTY = Registry(datasets={}, mixtures={})
