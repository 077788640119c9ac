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
from convert.source.kinds import dataset_name as source_dataset_name
from convert.source.kinds import is_source, split_source
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
    """Entry of a dataset that describes itself: the fields here replace its own; of a camera, single fields.

    ``layout`` says how to read its files, for kinds that need it.
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
        described = {name: entry for name, entry in datasets.items() if isinstance(entry, dict) and "source" in entry}
        registered = {name: entry for name, entry in datasets.items() if name not in described}
        return {**content, "datasets": registered, "described": described} if described else content

    @model_validator(mode="after")
    def _check(self) -> Registry:
        if ambiguous_names := {*self.datasets, *self.described} & self.mixtures.keys():
            raise ValueError(f"{min(ambiguous_names)!r} is the name of a dataset and of a mixture; rename one")
        return self

    def dataset(self, dataset_name: str) -> DatasetSpec:
        """Find a dataset by its name, or its TFDS name; raises ConfigError if none or several datasets have it."""
        if dataset_name in self.datasets:
            return self.datasets[dataset_name]
        matches = [spec for spec in self.datasets.values() if spec.tfds_name == dataset_name]
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(spec.name for spec in matches)
            raise ConfigError(f"{dataset_name} is the TFDS name of {names}; name one of these")
        hint = closest(dataset_name, self._dataset_names(), noun="datasets")
        raise ConfigError(f"unknown dataset {dataset_name!r:.80}; {hint}")

    def describe(self, dataset_name: str, source_entry: Mapping[str, Any]) -> DatasetSpec:
        """Return the registry entry of a dataset that describes itself; raises ConfigError if a field is not valid.

        The fields of the registry go before those of ``source_entry``, the entry that it makes of itself. Parts of
        action and state keep the names that the dataset gives their values.
        """
        declared_fields = dict(self.described[dataset_name].model_extra or {}) if dataset_name in self.described else {}
        cameras = {name: dict(camera) for name, camera in source_entry["cameras"].items()}
        if isinstance(declared_cameras := declared_fields.get("cameras"), dict):
            declared_fields["cameras"] = cameras | {
                name: {**cameras.get(name, {}), **camera} if isinstance(camera, dict) else camera
                for name, camera in declared_cameras.items()
            }
        for vector_name in ("action", "state"):
            if isinstance(parts := declared_fields.get(vector_name), list):
                source_parts = source_entry.get(vector_name, ())
                declared_fields[vector_name] = [_with_names(part, source_parts) for part in parts]
        content = {"tfds_name": dataset_name, **source_entry, **declared_fields, "name": dataset_name}
        return _build(DatasetSpec, content, name=f"datasets: {dataset_name}")

    def resolve(self, datasets_text: str, describe: Describe | None = None) -> list[Selected]:
        """Find the datasets that ``--datasets`` asks for.

        Args:
            datasets_text: Name of a mixture, names of datasets with commas between them, or the path of a YAML file: a
                mixture, or a file of datasets and mixtures (then its only mixture, or all its datasets if it has
                none). A name is one of the registry, or a source, see ``convert.source.kinds``.
            describe: Describes a dataset that describes itself.

        Raises:
            ConfigError: An unknown or repeated name, a file that cannot be used, or a file with several mixtures.
        """
        if datasets_text in self.mixtures:
            return self._members(self.mixtures[datasets_text], describe)
        if datasets_text.endswith((".yaml", ".yml")):
            return self._resolve_file(datasets_text, describe)
        dataset_names = [dataset_name.strip() for dataset_name in datasets_text.split(",")]
        known_names = self._dataset_names()
        if len(dataset_names) == 1 and dataset_names[0] not in known_names and not is_source(dataset_names[0]):
            hint = closest(datasets_text, {*self.mixtures, *known_names}, noun="names")
            raise ConfigError(f"unknown dataset or mixture {datasets_text!r:.80}; {hint}")
        selection = [self._select(dataset_name, describe) for dataset_name in dataset_names]
        for dataset_name, num_named in Counter(selected.spec.name for selected in selection).items():
            if num_named > 1:
                hint = (
                    "; converted roots become one dataset with +root: between them" if "root:" in datasets_text else ""
                )
                raise ConfigError(f"dataset {dataset_name} is named {num_named} times; name it once{hint}")
        return selection

    def _select(self, name: str, describe: Describe | None, member: MemberEntry | None = None) -> Selected:
        source_name = None
        if is_source(name):
            source_kind, location = split_source(name)
            name, source_name = source_dataset_name(source_kind, location), f"{source_kind}:{location}"
            if source_kind != "root" and (name in self.datasets or name in self.mixtures):
                raise ConfigError(f"{source_name}: {name} is the name of a dataset or mixture of the registry")
        elif name in self.described:
            source_name = self.described[name].source
        if source_name is None:
            return Selected(member or MemberEntry(), self.dataset(name))
        if describe is None:
            raise ConfigError(f"{name}: describes itself, which only convert.run and convert.draft read")
        layout = self.described[name].layout if name in self.described else {}
        return Selected(member or MemberEntry(), self.describe(name, describe(name, source_name, layout)))

    def _resolve_file(self, file_path: str, describe: Describe | None) -> list[Selected]:
        file_registry = _read_file(Path(file_path), file_path)
        names_in_file = list(file_registry.mixtures) or [*file_registry.datasets, *file_registry.described]
        if len(file_registry.mixtures) > 1:
            hint = f"give it as --config {file_path} and name one as --datasets"
            raise ConfigError(f"{file_path}: has several mixtures ({', '.join(names_in_file)}); {hint}")
        if not names_in_file:
            raise ConfigError(f"{file_path}: has neither datasets nor members of a mixture")
        return _join(self, file_registry, name=file_path).resolve(",".join(names_in_file), describe)

    def _members(self, mixture: Mixture, describe: Describe | None) -> list[Selected]:
        """Return the datasets to convert: each once, without members whose data have another root."""
        chosen: dict[str, Selected] = {}
        for member_key, member in mixture.members.items():
            dataset_name = (member.dataset or member_key).partition(":")[0]
            context = f"mixture {mixture.name}: members.{member_key}"
            if member.root is not None:
                continue
            if dataset_name not in self.datasets and dataset_name not in self.described:
                same_dataset = [
                    f"write {spec.name}" for spec in self.datasets.values() if spec.tfds_name == dataset_name
                ]
                hint = (*same_dataset, closest(dataset_name, {*self.datasets, *self.described}, noun="datasets"))[0]
                raise ConfigError(f"{context}: unknown dataset {dataset_name!r:.80}; {hint}")
            selected = self._select(dataset_name, describe, member)
            splits = selected.spec.splits
            for split in re.findall(r"([\w-]+)(?:\[[^]]*\])?", ",".join(member.splits.values())):
                if splits and split not in (*splits, "all"):
                    raise ConfigError(f"{context}: no split {split!r}; {closest(split, splits, noun='splits')}")
            first_member = chosen.setdefault(dataset_name, selected).member
            if first_member.offset != member.offset:
                raise ConfigError(
                    f"{context}: offset {member.offset}, another member of {dataset_name} has {first_member.offset}; "
                    "a conversion has one offset, give both the same"
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
            What has the name of an earlier entry replaces it completely.

    Raises:
        ConfigError: A file cannot be read or is not valid; says the file, the field and the fault.
    """
    registry = _packaged()
    for config_path in config:
        registry = _join(registry, _read_file(Path(config_path), str(config_path)), name=str(config_path))
    return registry


@cache
def _packaged() -> Registry:
    registry = _read_file(CONFIGS / "datasets.yaml", "configs/datasets.yaml")
    for mixture_path in sorted(CONFIGS.glob("mixtures/*.yaml")):
        name = f"configs/mixtures/{mixture_path.name}"
        registry = _join(registry, _read_file(mixture_path, name), name=name)
    return registry


def _join(registry: Registry, file_registry: Registry, *, name: str) -> Registry:
    replaced_names = {*file_registry.datasets, *file_registry.described}
    content: dict[str, Any] = {"mixtures": registry.mixtures | file_registry.mixtures}
    for field in ("datasets", "described"):
        kept = {key: entry for key, entry in getattr(registry, field).items() if key not in replaced_names}
        content[field] = kept | getattr(file_registry, field)
    return _build(Registry, content, name=name)


def _read_file(file_path: Path, name: str) -> Registry:
    """Return the datasets and mixtures that a file defines; ``name`` is its name in messages."""
    try:
        content = read_yaml(file_path)
    except OSError as fault:
        raise ConfigError(f"{name}: cannot be read: {fault.strerror or fault}") from None
    except ValueError as fault:
        raise ConfigError(f"{name}: {fault}") from None
    if isinstance(content, dict) and "members" in content:
        content = {"mixtures": {file_path.stem: content}}
    return _build(Registry, {} if content is None else content, name=name)


def _build(model_class: type[_Model], content: object, *, name: str) -> _Model:
    """Build a model; raises ConfigError that lists every fault with its field and the found value."""
    try:
        return model_class.model_validate(content)
    except ValidationError as error:
        raise ConfigError(list_faults(error, context=name)) from None


def _with_names(part: Any, source_parts: Sequence[Mapping[str, Any]]) -> Any:
    """Return a declared part with the names that its dataset gives the values, unless it has names already."""
    if not isinstance(part, dict) or "names" in part:
        return part
    for source_part in source_parts:
        names = source_part.get("names")
        if names and source_part["path"] == part.get("path") and "select" not in source_part:
            select = part.get("select", range(len(names)))
            exists = all(isinstance(index, int) and 0 <= index < len(names) for index in select)
            if exists and part.get("dims") == len(select):
                return {**part, "names": [names[index] for index in select]}
    return part
