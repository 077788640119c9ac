"""Datasets and mixtures by name, read from the packaged ``configs`` and from files of the user."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from convert.registry.config_file import ConfigError, Entry, build, read_yaml
from convert.registry.dataset import DatasetSpec, Name, Offset, Part, Text
from stream.storage.configs import CONFIGS
from stream.storage.errors import closest

__all__ = ["DatasetSpec", "Mixture", "MixtureMember", "Part", "Registry", "Selected", "SizePower", "load_registry"]

_BOUND = r"-?[0-9][0-9_]*(\.[0-9]+)?(%|shard)?"
_TERM = rf"\s*[A-Za-z0-9_-]+(\[({_BOUND})?(:({_BOUND})?)?\])?\s*"
SplitExpression = Annotated[str, Field(pattern=rf"^{_TERM}(\+{_TERM})*$")]


class SizePower(Entry):
    """A weight of ``factor * size ** size_power``, size in pairs: power 1 is by size, 0 is equal."""

    size_power: Annotated[float, Field(ge=0, le=4)]
    factor: Annotated[float, Field(gt=0, lt=1e12)] = 1.0


def _read_weight(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        raise ValueError(
            f"found {value!r:.80}; expected a finite number >= 0 (0 leaves the member out), `size`, or "
            "{size_power: p, factor: f} with p from 0 (all equal) to 1 (by size) and beyond"
        ) from None


Weight = Annotated[float, Field(ge=0, lt=1e12)] | Literal["size"] | SizePower


class MixtureMember(Entry):
    """A dataset in a mixture.

    Attributes:
        dataset: Name in the registry.
        weight: Weight relative to the other members.
        offset: Distance of a pair, None for the dataset's default.
        splits: TFDS split expression of each role of the mixture.
    """

    dataset: Text
    weight: Annotated[Weight, WrapValidator(_read_weight)]
    offset: Offset | None = None
    splits: dict[Text, SplitExpression] = Field(default_factory=lambda: {"train": "train[:90%]", "val": "train[90%:]"})


def _named(entries: Any, key: str) -> Any:
    """Write the name of each entry of a mapping into the entry itself."""
    if not isinstance(entries, dict):
        return {} if entries is None else entries
    return {name: {**entry, key: name} if isinstance(entry, dict) else entry for name, entry in entries.items()}


def _named_members(entries: Any) -> Any:
    """Name members as ``_named`` does; a weight alone stands for ``{weight: ...}``."""
    if isinstance(entries, dict):
        alone = {name for name, entry in entries.items() if not isinstance(entry, dict) or "size_power" in entry}
        entries = {name: {"weight": entry} if name in alone else entry for name, entry in entries.items()}
    return _named(entries, "dataset")


class Mixture(Entry):
    """Datasets and how often each is drawn."""

    name: Name
    description: Text
    by_dataset: Annotated[dict[str, MixtureMember], BeforeValidator(_named_members)] = Field(alias="members")

    @model_validator(mode="after")
    def _check(self) -> Mixture:
        if all(member.weight == 0 for member in self.members):
            raise ValueError("no member has a weight above 0")
        return self

    @property
    def members(self) -> tuple[MixtureMember, ...]:
        """The datasets of the mixture."""
        return tuple(self.by_dataset.values())


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

    datasets: Annotated[dict[str, DatasetSpec], BeforeValidator(partial(_named, key="name"))] = Field(default={})
    mixtures: Annotated[dict[str, Mixture], BeforeValidator(partial(_named, key="name"))] = Field(default={})

    @model_validator(mode="after")
    def _check(self) -> Registry:
        if both := self.datasets.keys() & self.mixtures.keys():
            raise ValueError(f"{min(both)!r} is the name of a dataset and of a mixture; rename one")
        return self

    def dataset(self, name: str) -> DatasetSpec:
        """Find a dataset by its name, or by its TFDS name where only one dataset has it.

        Raises:
            ConfigError: The name is unknown, or the TFDS name of several datasets; lists the closest names.
        """
        if name in self.datasets:
            return self.datasets[name]
        hits = [spec for spec in self.datasets.values() if spec.tfds_name == name]
        if len(hits) == 1:
            return hits[0]
        if hits:
            raise ConfigError(f"{name} is the TFDS name of {', '.join(spec.name for spec in hits)}; name one of these")
        raise ConfigError(f"unknown dataset {name!r:.80}; {closest(name, self._dataset_names(), noun='datasets')}")

    def resolve(self, text: str) -> list[Selected]:
        """Find the datasets that ``--datasets`` asks for.

        Args:
            text: Name of a mixture, names of datasets with commas between, or the path of a YAML file: a mixture, or a
                file of datasets and mixtures (then its only mixture, or all its datasets if it has none).

        Raises:
            ConfigError: An unknown or repeated name, a file that cannot be used, or a file with several mixtures.
        """
        if text in self.mixtures:
            return self._members(self.mixtures[text])
        if text.endswith((".yaml", ".yml")):
            return self._resolve_file(text)
        names = [name.strip() for name in text.split(",")]
        if len(names) == 1 and names[0] not in self._dataset_names():
            hint = closest(text, {*self.mixtures, *self._dataset_names()}, noun="names")
            raise ConfigError(f"unknown dataset or mixture {text!r:.80}; {hint}")
        specs = [self.dataset(name) for name in names]
        for name, count in Counter(spec.name for spec in specs).items():
            if count > 1:
                raise ConfigError(f"dataset {name} is named {count} times; name it once")
        return [Selected(MixtureMember(dataset=spec.name, weight=1.0), spec) for spec in specs]

    def _resolve_file(self, path: str) -> list[Selected]:
        added = _read_file(Path(path), path)
        names = list(added.mixtures) or list(added.datasets)
        if len(added.mixtures) > 1:
            hint = f"give it as --config {path} and name one as --datasets"
            raise ConfigError(f"{path}: has several mixtures ({', '.join(names)}); {hint}")
        if not names:
            raise ConfigError(f"{path}: has neither datasets nor members of a mixture")
        return _join(self, added, file=path).resolve(",".join(names))

    def _members(self, mixture: Mixture) -> list[Selected]:
        members = []
        for member in mixture.members:
            name, place = member.dataset, f"mixture {mixture.name}: members.{member.dataset}"
            if name not in self.datasets:
                same = [spec.name for spec in self.datasets.values() if spec.tfds_name == name]
                hint = f"write {same[0]}" if same else closest(name, self.datasets, noun="datasets")
                raise ConfigError(f"{place}: unknown dataset {name!r:.80}; {hint}")
            spec = self.datasets[name]
            for split in re.findall(r"([\w-]+)(?:\[[^]]*\])?", ",".join(member.splits.values())):
                if spec.splits and split not in (*spec.splits, "all"):
                    raise ConfigError(f"{place}: no split {split!r}; {closest(split, spec.splits, noun='splits')}")
            members.append(Selected(member, spec))
        return members

    def _dataset_names(self) -> set[str]:
        return {*self.datasets, *(spec.tfds_name for spec in self.datasets.values())}


def load_registry(*, config: Sequence[str | PathLike[str]] = ()) -> Registry:
    """Read the packaged registry and files of the user.

    Args:
        config: YAML files, later ones over earlier ones. Each has ``datasets:`` and ``mixtures:`` (mappings by name),
            or is a mixture itself (``description``, ``members``; its name is the name of the file). A dataset or
            mixture that exists already is replaced as a whole.

    Raises:
        ConfigError: A file cannot be read or is not valid; says the file, the field and the fault.
    """
    registry = _packaged()
    for path in config:
        registry = _join(registry, _read_file(Path(path), str(path)), file=str(path))
    return registry


@cache
def _packaged() -> Registry:
    registry = _read_file(CONFIGS / "datasets.yaml", "configs/datasets.yaml")
    for path in sorted(CONFIGS.glob("mixtures/*.yaml")):
        name = f"configs/mixtures/{path.name}"
        registry = _join(registry, _read_file(path, name), file=name)
    return registry


def _join(registry: Registry, added: Registry, *, file: str) -> Registry:
    datasets, mixtures = registry.datasets | added.datasets, registry.mixtures | added.mixtures
    return build(Registry, {"datasets": datasets, "mixtures": mixtures}, file=file)


def _read_file(path: Path, name: str) -> Registry:
    """Return the datasets and mixtures that a file defines."""
    content = read_yaml(path, name=name)
    if isinstance(content, dict) and "members" in content:
        content = {"mixtures": {path.stem: content}}
    return build(Registry, {} if content is None else content, file=name)
