"""Datasets and mixtures by name, read from the packaged ``configs`` and from files of the user."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
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


class Port(BaseModel):
    """Fields that replace those of the entry that a LeRobot dataset makes of itself; of a camera, single ones.

    Attributes:
        repository: ``ORG/NAME`` below a source, or a path; needed where a mixture or --datasets has the name alone.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    repository: Text | None = None


Describe = Callable[[str, str], Mapping[str, Any]]
"""Takes the name and the repository of a LeRobot dataset and returns the entry that it makes of itself."""

LEROBOT = "lerobot:"
"""Prefix of a repository in ``--datasets``."""


def port_name(repository: str) -> str:
    """Return the name of a LeRobot dataset: ``ORG_NAME``, or of a path its last folder.

    >>> port_name("lerobot/pusht"), port_name("/data/mine/pick-cube/")
    ('lerobot_pusht', 'pick-cube')
    """
    is_path = repository.startswith(("/", ".")) or ":" in repository
    kept = repository.rstrip("/").rsplit("/", 1)[-1] if is_path else repository
    return re.sub(r"[^A-Za-z0-9_.-]", "_", kept).lstrip("_.-") or "dataset"


class Selected(NamedTuple):
    """A dataset that was asked for, and how."""

    member: MixtureMember
    spec: DatasetSpec

    @property
    def offset(self) -> int | str:
        """The pair offset: the member's own, else the dataset's default."""
        return self.spec.offset if self.member.offset is None else self.member.offset


class Registry(Entry):
    """The datasets and mixtures by name, and what is declared of LeRobot datasets."""

    datasets: Annotated[dict[str, DatasetSpec], BeforeValidator(partial(_named, key="name"))] = Field(default={})
    mixtures: Annotated[dict[str, Mixture], BeforeValidator(partial(_named, key="name"))] = Field(default={})
    lerobot: dict[Name, Port] = Field(default={})

    @model_validator(mode="after")
    def _check(self) -> Registry:
        if both := self.datasets.keys() & self.mixtures.keys():
            raise ValueError(f"{min(both)!r} is the name of a dataset and of a mixture; rename one")
        if both := self.lerobot.keys() & {*self.datasets, *self.mixtures}:
            raise ValueError(f"{min(both)!r} under lerobot is the name of another dataset or mixture; rename one")
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

    def port(self, name: str, entry: Mapping[str, Any]) -> DatasetSpec:
        """Return the registry entry of a LeRobot dataset.

        Args:
            name: Name of the dataset.
            entry: Entry that it makes of itself; the fields under ``lerobot:`` go before.

        Raises:
            ConfigError: A field is not valid.
        """
        own = dict(self.lerobot[name].model_extra or {}) if name in self.lerobot else {}
        cameras = {key: dict(camera) for key, camera in entry["cameras"].items()}
        if isinstance(declared := own.get("cameras"), dict):
            own["cameras"] = cameras | {
                key: {**cameras.get(key, {}), **camera} if isinstance(camera, dict) else camera
                for key, camera in declared.items()
            }
        return build(DatasetSpec, {"tfds_name": name, **entry, **own, "name": name}, file=f"lerobot: {name}")

    def resolve(self, text: str, describe: Describe | None = None) -> list[Selected]:
        """Find the datasets that ``--datasets`` asks for.

        Args:
            text: Name of a mixture, names of datasets with commas between, or the path of a YAML file: a mixture, or a
                file of datasets and mixtures (then its only mixture, or all its datasets if it has none). A name is
                one of the registry, or ``lerobot:ORG/NAME``.
            describe: Describes a LeRobot dataset.

        Raises:
            ConfigError: An unknown or repeated name, a file that cannot be used, or a file with several mixtures.
        """
        if text in self.mixtures:
            return self._members(self.mixtures[text], describe)
        if text.endswith((".yaml", ".yml")):
            return self._resolve_file(text, describe)
        names = [name.strip() for name in text.split(",")]
        if len(names) == 1 and names[0] not in self._dataset_names() and not names[0].startswith(LEROBOT):
            hint = closest(text, {*self.mixtures, *self._dataset_names()}, noun="names")
            raise ConfigError(f"unknown dataset or mixture {text!r:.80}; {hint}")
        found = [self._select(name, describe) for name in names]
        for name, count in Counter(selected.spec.name for selected in found).items():
            if count > 1:
                raise ConfigError(f"dataset {name} is named {count} times; name it once")
        return found

    def _select(self, name: str, describe: Describe | None, member: MixtureMember | None = None) -> Selected:
        repository = name.removeprefix(LEROBOT) if name.startswith(LEROBOT) else None
        if repository is not None:
            name = port_name(repository)
            if name in self.datasets or name in self.mixtures:
                raise ConfigError(f"{LEROBOT}{repository}: {name} is the name of a dataset or mixture of the registry")
        elif name in self.lerobot:
            repository = self.lerobot[name].repository
            if repository is None:
                raise ConfigError(f"lerobot: {name}: has no repository; add it, or write {LEROBOT}ORG/NAME")
        if repository is not None and describe is None:
            raise ConfigError(f"{name}: is a LeRobot dataset, which only convert.run reads")
        spec = self.port(name, describe(name, repository)) if repository and describe else self.dataset(name)
        return Selected(member or MixtureMember(dataset=spec.name, weight=1.0), spec)

    def _resolve_file(self, path: str, describe: Describe | None) -> list[Selected]:
        added = _read_file(Path(path), path)
        names = list(added.mixtures) or [*added.datasets, *added.lerobot]
        if len(added.mixtures) > 1:
            hint = f"give it as --config {path} and name one as --datasets"
            raise ConfigError(f"{path}: has several mixtures ({', '.join(names)}); {hint}")
        if not names:
            raise ConfigError(f"{path}: has neither datasets nor members of a mixture")
        return _join(self, added, file=path).resolve(",".join(names), describe)

    def _members(self, mixture: Mixture, describe: Describe | None) -> list[Selected]:
        members = []
        for member in mixture.members:
            name, place = member.dataset, f"mixture {mixture.name}: members.{member.dataset}"
            if name not in self.datasets and name not in self.lerobot:
                same = [spec.name for spec in self.datasets.values() if spec.tfds_name == name]
                hint = f"write {same[0]}" if same else closest(name, {*self.datasets, *self.lerobot}, noun="datasets")
                raise ConfigError(f"{place}: unknown dataset {name!r:.80}; {hint}")
            selected = self._select(name, describe, member)
            spec = selected.spec
            for split in re.findall(r"([\w-]+)(?:\[[^]]*\])?", ",".join(member.splits.values())):
                if spec.splits and split not in (*spec.splits, "all"):
                    raise ConfigError(f"{place}: no split {split!r}; {closest(split, spec.splits, noun='splits')}")
            members.append(selected)
        return members

    def _dataset_names(self) -> set[str]:
        return {*self.datasets, *(spec.tfds_name for spec in self.datasets.values()), *self.lerobot}


def load_registry(*, config: Sequence[str | PathLike[str]] = ()) -> Registry:
    """Read the packaged registry and files of the user.

    Args:
        config: YAML files, later ones over earlier ones. Each has ``datasets:``, ``mixtures:`` and ``lerobot:``
            (mappings by name), or is a mixture itself (``description``, ``members``; its name is the name of the file).
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
    datasets, mixtures = registry.datasets | added.datasets, registry.mixtures | added.mixtures
    ports = registry.lerobot | added.lerobot
    return build(Registry, {"datasets": datasets, "mixtures": mixtures, "lerobot": ports}, file=file)


def _read_file(path: Path, name: str) -> Registry:
    """Return the datasets and mixtures that a file defines."""
    content = read_yaml(path, name=name)
    if isinstance(content, dict) and "members" in content:
        content = {"mixtures": {path.stem: content}}
    return build(Registry, {} if content is None else content, file=name)
