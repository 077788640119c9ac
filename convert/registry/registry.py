"""Datasets and mixtures by name, read from the packaged ``configs`` and from files of the user."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from convert.registry.config_file import ConfigError, Entry, build, read_yaml
from convert.registry.dataset import DatasetSpec, Name, Part
from stream.format.mixture_file import MemberEntry, MixtureFile
from stream.storage.configs import CONFIGS
from stream.storage.errors import closest

__all__ = ["DatasetSpec", "MemberEntry", "Mixture", "Part", "Registry", "Selected", "load_registry"]


def _named(entries: Any) -> Any:
    """Write the name of each entry of a mapping into the entry itself."""
    if not isinstance(entries, dict):
        return {} if entries is None else entries
    return {name: {**entry, "name": name} if isinstance(entry, dict) else entry for name, entry in entries.items()}


class Mixture(MixtureFile):
    """Datasets and how often each is drawn."""

    name: Name


class Selected(NamedTuple):
    """A dataset that was asked for, and how."""

    member: MemberEntry
    spec: DatasetSpec

    @property
    def offset(self) -> int | str:
        """The pair offset: the member's own, else the dataset's default."""
        return self.spec.offset if self.member.offset is None else self.member.offset


class Registry(Entry):
    """The datasets and mixtures by name."""

    datasets: Annotated[dict[str, DatasetSpec], BeforeValidator(_named)] = Field(default={})
    mixtures: Annotated[dict[str, Mixture], BeforeValidator(_named)] = Field(default={})

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
        return [Selected(MemberEntry(), spec) for spec in specs]

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
        """Return the datasets to convert: each once, without members whose data have a root of their own."""
        found: dict[str, Selected] = {}
        for key, member in mixture.members.items():
            name, place = (member.dataset or key).partition(":")[0], f"mixture {mixture.name}: members.{key}"
            if member.root is not None:
                continue
            if name not in self.datasets:
                same = [spec.name for spec in self.datasets.values() if spec.tfds_name == name]
                hint = f"write {same[0]}" if same else closest(name, self.datasets, noun="datasets")
                raise ConfigError(f"{place}: unknown dataset {name!r:.80}; {hint}")
            spec = self.datasets[name]
            for split in re.findall(r"([\w-]+)(?:\[[^]]*\])?", ",".join(member.splits.values())):
                if spec.splits and split not in (*spec.splits, "all"):
                    raise ConfigError(f"{place}: no split {split!r}; {closest(split, spec.splits, noun='splits')}")
            other = found.setdefault(name, Selected(member, spec)).member
            if other.offset != member.offset:
                raise ConfigError(
                    f"{place}: offset {member.offset}, another member of {name} has {other.offset}; a conversion has "
                    "one offset, give both the same"
                )
        if not found:
            raise ConfigError(f"mixture {mixture.name}: every member has a root of its own, so nothing is converted")
        return list(found.values())

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
