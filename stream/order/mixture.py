"""Members of a mixture, with split and weight, from the ``mixture`` argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from stream.format.catalog import Catalog
from stream.format.names import MANIFEST_NAME
from stream.storage.configs import CONFIGS, read_yaml
from stream.storage.errors import ArgumentError, closest, first_fault

_MIXTURES = CONFIGS / "mixtures"


class SizePower(BaseModel):
    """A weight of ``factor * size ** size_power``, with the size in pairs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_power: Annotated[float, Field(ge=0, le=4)]
    factor: Annotated[float, Field(gt=0, lt=1e12)] = 1.0


Weight = float | Literal["size"] | SizePower
_PLAIN_WEIGHT: TypeAdapter[float | Literal["size"]] = TypeAdapter(
    Annotated[float, Field(strict=True, ge=0, lt=1e15)] | Literal["size"]
)


@dataclass(frozen=True)
class Member:
    """A dataset of a mixture.

    Attributes:
        dataset: Name, such as ``bridge`` or ``bridge:0.1.0``.
        split: Split expression.
        weight: Relative weight.
        offset: Offset of pairs that the mixture was written for, if it names one; loaders use the converted offset.
    """

    dataset: str
    split: str
    weight: Weight
    offset: int | str | None = None

    def relative_weight(self, size: int) -> float:
        """Return the weight as a number, for a member of ``size`` pairs."""
        if isinstance(self.weight, SizePower):
            return self.weight.factor * float(size) ** self.weight.size_power
        return float(size if self.weight == "size" else self.weight)


class _YamlMember(BaseModel):
    """A member of a YAML file, whose values are texts; a weight alone stands for ``{weight: ...}``."""

    model_config = ConfigDict(extra="forbid")

    weight: Annotated[float | Any, Field(union_mode="left_to_right")]
    offset: Annotated[int | str | None, Field(union_mode="left_to_right")] = None
    splits: dict[str, str] = Field(default_factory=lambda: {"train": "train[:90%]", "val": "train[90%:]"})


def resolve_mixture(mixture: str | Path | Mapping[str, Any], split: str, catalog: Catalog) -> list[Member]:
    """Return the members of a mixture, without those of weight 0.

    Args:
        mixture: Name of a packaged mixture (``oxe29``), names of datasets below the root separated by commas (equal
            weights), a mapping of names to weights (numbers, ``"size"``, or ``{"size_power": p, "factor": f}``), or a
            YAML file as ``convert.run`` takes it.
        split: Role that the packaged mixture or YAML file defines for each member (``train``, ``val``); for datasets a
            TFDS split expression.
        catalog: Datasets below the root.

    Raises:
        ArgumentError: A name or role is unknown, a file cannot be read, a weight is negative or not finite, or no
            weight is above 0.
    """
    if not isinstance(mixture, str | Path | Mapping):
        raise ArgumentError(
            f"mixture={mixture!r:.100}; expected a name, a mapping of dataset names to weights, or a YAML file"
        )
    if not isinstance(split, str):
        raise ArgumentError(f"split={split!r:.100}; expected a text, such as 'train' or 'train[:90%]'")
    if isinstance(mixture, Mapping):
        members = [
            Member(str(name), split, _weight(value, where=f"mixture[{name!r}]")) for name, value in mixture.items()
        ]
    elif isinstance(mixture, Path) or mixture.endswith((".yaml", ".yml")):
        members = _members(_read_file(Path(mixture)), split, where=str(mixture))
    elif mixture in packaged_mixtures():
        members = _members(_read_file(_MIXTURES / f"{mixture}.yaml"), split, where=mixture)
    else:
        members = [Member(name, split, 1.0) for name in _names(mixture, catalog)]
    positive = [member for member in members if member.weight != 0]
    if not positive:
        raise ArgumentError(f"mixture {mixture!r:.200}: no member has a weight above 0")
    if any(member.dataset.partition(":")[0] not in catalog.versions for member in positive):
        catalog.check_converted()
    return positive


def _names(text: str, catalog: Catalog) -> list[str]:
    """Return the names of datasets in a text that separates them by commas."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name.partition(":")[0] in catalog.versions:
            continue
        if name in packaged_mixtures():
            raise ArgumentError(f"mixture {text!r:.200}: {name!r} is a mixture; only names of datasets can be listed")
        catalog.check_converted()
        known = {*catalog.versions, *(packaged_mixtures() if len(names) == 1 else ())}
        inside = (catalog.root / MANIFEST_NAME).exists() or any(catalog.root.glob(f"*/{MANIFEST_NAME}"))
        hint = f"; {catalog.root} is the folder of one dataset, give the root that holds all of them" if inside else ""
        raise ArgumentError(
            f"no {'mixture or ' if len(names) == 1 else ''}dataset {name!r}; {closest(name, known, noun='names')}{hint}"
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ArgumentError(f"mixture {text!r:.200}: names {twice[0]} twice; give a mapping of names to weights")
    return names


def packaged_mixtures() -> list[str]:
    """Return the names of the mixtures that the package brings."""
    return sorted(file.stem for file in _MIXTURES.glob("*.yaml"))


def _weight(value: Any, *, where: str) -> Weight:
    try:
        if isinstance(value, Mapping):
            return SizePower.model_validate(dict(value))
        return value if isinstance(value, SizePower) else _PLAIN_WEIGHT.validate_python(value)
    except ValidationError as error:
        if isinstance(value, Mapping):
            raise ArgumentError(f"{where}: {first_fault(error)}; keys of a weight: size_power, factor") from None
        raise ArgumentError(
            f"{where}: weight {value!r:.60}; expected a finite number >= 0, 'size', or a mapping with size_power"
        ) from None


def _read_file(path: Path) -> Any:
    try:
        content = read_yaml(path)
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read ({error.strerror}); give a mixture's YAML file") from None
    except ValueError as error:
        raise ArgumentError(f"{path}: {error}") from None
    if isinstance(content, dict) and "members" not in content and isinstance(content.get("mixtures"), dict):
        mixtures = content["mixtures"]
        if len(mixtures) != 1:
            raise ArgumentError(f"{path}: has {len(mixtures)} mixtures, expected one; write a file for each")
        content = next(iter(mixtures.values()))
    return content


def _members(content: Any, role: str, *, where: str) -> list[Member]:
    entries = content.get("members") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise ArgumentError(f"{where}: expected a mapping `members` of dataset names to weight and splits")
    members = []
    for name, entry in entries.items():
        place = f"{where}: members.{name}"
        alone = not isinstance(entry, dict) or "size_power" in entry
        try:
            parsed = _YamlMember.model_validate({"weight": entry} if alone else entry)
        except ValidationError as error:
            raise ArgumentError(f"{place}: {first_fault(error)}") from None
        if role not in parsed.splits:
            raise ArgumentError(
                f"{place}: split={role!r} is none of its roles ({', '.join(parsed.splits)}); with a named mixture or a "
                "file `split` is a role; for split expressions give a mapping of names to weights"
            )
        weight = _weight(parsed.weight, where=place)
        members.append(Member(name, parsed.splits[role], weight, parsed.offset))
    return members
