"""Datasets and mixtures by name, read from the packaged ``configs`` and from files of the user."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from convert.errors import ConfigError
from convert.registry.dataset import DatasetSpec, Name, Part
from convert.registry.space import Text
from convert.source.kinds import dataset_name, is_source, split_source
from stream.base.configs import CONFIGS, Entry, list_faults, read_yaml
from stream.base.errors import closest
from stream.format.mixture_file import MemberEntry, MixtureFile

__all__ = ["DatasetSpec", "MemberEntry", "Mixture", "Part", "Registry", "Selected", "load_registry"]

_Model = TypeVar("_Model", bound=BaseModel)


def _named(entries: Any) -> Any:
    """Write the name of each entry of a mapping into the entry itself."""
    if not isinstance(entries, dict):
        return {} if entries is None else entries
    return {name: {**entry, "name": name} if isinstance(entry, dict) else entry for name, entry in entries.items()}


class Mixture(MixtureFile):
    """Datasets and how often each is drawn."""

    name: Name


class Described(BaseModel):
    """Entry of a dataset that describes itself: the fields here replace those of its own; of a camera, single ones.

    Attributes:
        source: ``KIND:PLACE``.
        layout: How to read its files, for kinds that are told so.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    source: Text
    layout: dict[str, Any] = Field(default={})


Describe = Callable[[str, str, Mapping[str, Any]], Mapping[str, Any]]
"""Takes the name, the source and the layout of a dataset and returns the entry that it makes of itself."""


class Selected(NamedTuple):
    """A dataset that was asked for, and how."""

    member: MemberEntry
    spec: DatasetSpec

    @property
    def offset(self) -> int | str:
        """The pair offset: the member's own, else the dataset's default."""
        return self.spec.offset if self.member.offset is None else self.member.offset


class Registry(Entry):
    """The datasets and mixtures by name; ``described`` are those under ``datasets:`` that have a ``source``."""

    datasets: Annotated[dict[str, DatasetSpec], BeforeValidator(_named)] = Field(default={})
    mixtures: Annotated[dict[str, Mixture], BeforeValidator(_named)] = Field(default={})
    described: dict[Name, Described] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _part(cls, content: Any) -> Any:
        """Tell the datasets that describe themselves from the others."""
        if not isinstance(content, dict) or not isinstance(content.get("datasets"), dict):
            return content
        datasets: dict[Any, Any] = content["datasets"]
        own = {name: entry for name, entry in datasets.items() if isinstance(entry, dict) and "source" in entry}
        others = {name: entry for name, entry in datasets.items() if name not in own}
        return {**content, "datasets": others, "described": own} if own else content

    @model_validator(mode="after")
    def _check(self) -> Registry:
        if both := {*self.datasets, *self.described} & self.mixtures.keys():
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

    def describe(self, name: str, entry: Mapping[str, Any]) -> DatasetSpec:
        """Return the registry entry of a dataset that describes itself.

        Args:
            name: Name of the dataset.
            entry: Entry that it makes of itself; the fields of the registry go before.

        Raises:
            ConfigError: A field is not valid.
        """
        own = dict(self.described[name].model_extra or {}) if name in self.described else {}
        cameras = {key: dict(camera) for key, camera in entry["cameras"].items()}
        if isinstance(declared := own.get("cameras"), dict):
            own["cameras"] = cameras | {
                key: {**cameras.get(key, {}), **camera} if isinstance(camera, dict) else camera
                for key, camera in declared.items()
            }
        return _build(DatasetSpec, {"tfds_name": name, **entry, **own, "name": name}, file=f"datasets: {name}")

    def resolve(self, text: str, describe: Describe | None = None) -> list[Selected]:
        """Find the datasets that ``--datasets`` asks for.

        Args:
            text: Name of a mixture, names of datasets with commas between, or the path of a YAML file: a mixture, or a
                file of datasets and mixtures (then its only mixture, or all its datasets if it has none). A name is
                one of the registry, or a source, see ``convert.source.kinds``.
            describe: Describes a dataset that describes itself.

        Raises:
            ConfigError: An unknown or repeated name, a file that cannot be used, or a file with several mixtures.
        """
        if text in self.mixtures:
            return self._members(self.mixtures[text], describe)
        if text.endswith((".yaml", ".yml")):
            return self._resolve_file(text, describe)
        names = [name.strip() for name in text.split(",")]
        if len(names) == 1 and names[0] not in self._dataset_names() and not is_source(names[0]):
            hint = closest(text, {*self.mixtures, *self._dataset_names()}, noun="names")
            raise ConfigError(f"unknown dataset or mixture {text!r:.80}; {hint}")
        found = [self._select(name, describe) for name in names]
        for name, count in Counter(selected.spec.name for selected in found).items():
            if count > 1:
                joined = "; converted roots become one dataset with +root: between them" if "root:" in text else ""
                raise ConfigError(f"dataset {name} is named {count} times; name it once{joined}")
        return found

    def _select(self, name: str, describe: Describe | None, member: MemberEntry | None = None) -> Selected:
        source = None
        if is_source(name):
            kind, place = split_source(name)
            name, source = dataset_name(kind, place), f"{kind}:{place}"
            if kind != "root" and (name in self.datasets or name in self.mixtures):
                raise ConfigError(f"{source}: {name} is the name of a dataset or mixture of the registry")
        elif name in self.described:
            source = self.described[name].source
        if source is None:
            return Selected(member or MemberEntry(), self.dataset(name))
        if describe is None:
            raise ConfigError(f"{name}: describes itself, which only convert.run and convert.draft read")
        layout = self.described[name].layout if name in self.described else {}
        return Selected(member or MemberEntry(), self.describe(name, describe(name, source, layout)))

    def _resolve_file(self, path: str, describe: Describe | None) -> list[Selected]:
        added = _read_file(Path(path), path)
        names = list(added.mixtures) or [*added.datasets, *added.described]
        if len(added.mixtures) > 1:
            hint = f"give it as --config {path} and name one as --datasets"
            raise ConfigError(f"{path}: has several mixtures ({', '.join(names)}); {hint}")
        if not names:
            raise ConfigError(f"{path}: has neither datasets nor members of a mixture")
        return _join(self, added, file=path).resolve(",".join(names), describe)

    def _members(self, mixture: Mixture, describe: Describe | None) -> list[Selected]:
        """Return the datasets to convert: each once, without members whose data have a root of their own."""
        chosen: dict[str, Selected] = {}
        for key, member in mixture.members.items():
            name, place = (member.dataset or key).partition(":")[0], f"mixture {mixture.name}: members.{key}"
            if member.root is not None:
                continue
            if name not in self.datasets and name not in self.described:
                same = [spec.name for spec in self.datasets.values() if spec.tfds_name == name]
                hint = f"write {same[0]}" if same else closest(name, {*self.datasets, *self.described}, noun="datasets")
                raise ConfigError(f"{place}: unknown dataset {name!r:.80}; {hint}")
            selected = self._select(name, describe, member)
            spec = selected.spec
            for split in re.findall(r"([\w-]+)(?:\[[^]]*\])?", ",".join(member.splits.values())):
                if spec.splits and split not in (*spec.splits, "all"):
                    raise ConfigError(f"{place}: no split {split!r}; {closest(split, spec.splits, noun='splits')}")
            other = chosen.setdefault(name, selected).member
            if other.offset != member.offset:
                raise ConfigError(
                    f"{place}: offset {member.offset}, another member of {name} has {other.offset}; a conversion has "
                    "one offset, give both the same"
                )
        if not chosen:
            raise ConfigError(f"mixture {mixture.name}: every member has a root of its own, so nothing is converted")
        return list(chosen.values())

    def _dataset_names(self) -> set[str]:
        return {*self.datasets, *(spec.tfds_name for spec in self.datasets.values()), *self.described}


def load_registry(*, config: Sequence[str | PathLike[str]] = ()) -> Registry:
    """Read the packaged registry and files of the user.

    Args:
        config: YAML files, later ones over earlier ones. Each has ``datasets:`` and ``mixtures:`` (mappings by name),
            or is a mixture itself (``description``, ``members``; its name is the name of the file).
            What has the name of an earlier entry replaces it as a whole.

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
    names = {*added.datasets, *added.described}
    content = {
        "datasets": {name: each for name, each in registry.datasets.items() if name not in names} | added.datasets,
        "described": {name: each for name, each in registry.described.items() if name not in names} | added.described,
        "mixtures": registry.mixtures | added.mixtures,
    }
    return _build(Registry, content, file=file)


def _read_file(path: Path, name: str) -> Registry:
    """Return the datasets and mixtures that a file defines; ``name`` is its name in messages."""
    try:
        content = read_yaml(path)
    except OSError as fault:
        raise ConfigError(f"{name}: cannot be read: {fault.strerror or fault}") from None
    except ValueError as fault:
        raise ConfigError(f"{name}: {fault}") from None
    if isinstance(content, dict) and "members" in content:
        content = {"mixtures": {path.stem: content}}
    return _build(Registry, {} if content is None else content, file=name)


def _build(model: type[_Model], content: object, *, file: str) -> _Model:
    """Build a model; raises ConfigError that lists every fault with its field and the found value."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigError(list_faults(error, context=file)) from None
