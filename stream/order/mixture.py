"""Members of a mixture, with split and weights, from the ``mixture`` argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stream.base.configs import CONFIGS, list_faults, read_given_yaml
from stream.base.errors import ArgumentError, closest
from stream.base.value_object import ValueObject
from stream.format.catalog import Catalog
from stream.format.mixture_file import MemberEntry, MixtureFile, SizePower, Weight, in_folder, member_content
from stream.order.splits import near_split
from stream.sample.frames import Frames
from stream.sample.select import Select
from stream.sample.vector import Vector

MixtureLike = str | Path | Mapping[str, Any] | Sequence[str] | Sequence[tuple[int | None, Mapping[str, Any]]]
"""A name, datasets, a mapping of them to weights or members, a schedule of such mappings, or a YAML file."""
_MIXTURES = CONFIGS / "mixtures"
_EXPECTED = (
    "a name, a list of dataset names, a mapping of them to weights, a YAML file, or a schedule: a list of (last step, "
    "mapping) with None as the last one's step"
)


@dataclass(frozen=True)
class Member:
    """A member of a mixture.

    Attributes:
        dataset: Name, such as ``bridge`` or ``bridge:0.1.0``.
        split: Split expression.
        weights: Relative weight in each phase.
        offset: Offset of pairs that the mixture was written for, if it names one; loaders use the converted offset.
        name: Name of the member; empty if it is the name of the dataset.
        root: Converted root, None for the root of the loader.
        select: Choices among its samples, in addition to the loader's.
        frames, action, state: Fields of the steps and columns that replace the loader's for this member; None takes
            those.
    """

    dataset: str
    split: str
    weights: tuple[Weight, ...] = (1.0,)
    offset: int | str | None = None
    name: str = ""
    root: str | None = None
    select: Select = Select()
    frames: Frames | None = None
    action: Vector | None = None
    state: Vector | None = None

    def relative_weights(self, num_samples: int) -> tuple[float, ...]:
        """Return the weight in each phase as a number, for a member of ``num_samples`` samples."""
        return tuple(_number(weight, num_samples) for weight in self.weights)


@dataclass(frozen=True)
class Mixture:
    """A mixture.

    Attributes:
        members: Members that some phase draws.
        until: Step at which each phase but the last ends.
    """

    members: tuple[Member, ...]
    until: tuple[int, ...] = ()


def _number(weight: Weight, num_samples: int) -> float:
    if isinstance(weight, SizePower):
        return weight.factor * float(num_samples) ** weight.size_power
    return float(num_samples if weight == "size" else weight)


def resolve_mixture(mixture: Any, split: str, catalog: Catalog) -> Mixture:
    """Return a mixture, without members whose weight is always 0.

    Args:
        mixture: Name of a packaged mixture (``oxe29``); names of datasets below the root in a list, or separated by
            commas (equal weights); a mapping of names to weights or to the keys of a YAML file's members; a schedule,
            that is, a list of ``(until, mapping)``; or a YAML file as ``convert.run`` takes it.
        split: Role that the packaged mixture or YAML file defines for each member (``train``, ``val``); for datasets a
            TFDS split expression.
        catalog: Datasets below the root.

    Raises:
        ArgumentError: A name or role is unknown, a file cannot be read, a weight is negative or not finite, or a phase
            has no weight above 0.
    """
    if not isinstance(split, str):
        raise ArgumentError(f"split={split!r:.100}; expected a text, such as 'train' or 'train[:90%]'")
    if isinstance(mixture, list | tuple) and mixture and all(isinstance(name, str) for name in mixture):
        mixture = ",".join(mixture)
    if isinstance(mixture, Mapping | list | tuple) and not mixture:
        raise ArgumentError(f"mixture={mixture!r} names no dataset; expected {_EXPECTED}")
    if isinstance(mixture, Mapping):
        return _read({"members": dict(mixture)}, split, context=f"mixture {dict(mixture)!r:.200}")
    if isinstance(mixture, list | tuple):
        return _read(_scheduled(mixture), split, context="mixture")
    if isinstance(mixture, Path) or (isinstance(mixture, str) and mixture.endswith((".yaml", ".yml"))):
        return _read(_read_file(Path(mixture)), split, context=str(mixture), folder=Path(mixture).parent)
    if not isinstance(mixture, str):
        raise ArgumentError(f"mixture={mixture!r:.100}; expected {_EXPECTED}")
    if mixture in packaged_mixtures():
        return _read(_read_file(_MIXTURES / f"{mixture}.yaml"), split, context=mixture, folder=_MIXTURES)
    return Mixture(tuple(Member(dataset_name, split) for dataset_name in _names(mixture, catalog)))


def _names(text: str, catalog: Catalog) -> list[str]:
    """Return the names of datasets in a text that separates them by commas."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name.partition(":")[0] in catalog.versions:
            continue
        if name in packaged_mixtures():
            raise ArgumentError(f"mixture {text!r:.200}: {name!r} is a mixture; only names of datasets can be listed")
        catalog.check_converted()
        is_single = len(names) == 1
        available = {*catalog.versions, *(packaged_mixtures() if is_single else ())}
        hint = closest(name, available, noun="names")
        raise ArgumentError(f"no {'mixture or ' if is_single else ''}dataset {name!r}; {hint}")
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise ArgumentError(f"mixture {text!r:.200}: names {duplicates[0]} twice; give a mapping of names to weights")
    return names


def packaged_mixtures() -> list[str]:
    """Return the names of the packaged mixtures."""
    return sorted(yaml_file.stem for yaml_file in _MIXTURES.glob("*.yaml"))


def _scheduled(phases: Sequence[Any]) -> dict[str, Any]:
    """Return a list of (until, mapping) as the content of a file; a member's choices are given in one phase."""
    members: dict[str, dict[str, Any]] = {}
    schedule = []
    for phase in phases:
        if not isinstance(phase, list | tuple) or len(phase) != 2 or not isinstance(phase[1], Mapping):
            raise ArgumentError(f"mixture: phase {phase!r:.100}; expected {_EXPECTED}")
        until, mapping = phase
        weights = {}
        for member_name, member_entry in mapping.items():
            content = member_content(member_entry)
            weights[str(member_name)] = content.pop("weight", 1.0)
            if content and members.get(str(member_name)):
                raise ArgumentError(
                    f"mixture: member {member_name!r} has {', '.join(content)} in a phase, and other keys in an "
                    "earlier one; give all but the weight once, or the members other names and the same `dataset`"
                )
            members[str(member_name)] = content or members.get(str(member_name), {})
        schedule.append({"until": until, "weights": weights})
    return {"members": members, "schedule": schedule}


def _read_file(mixture_path: Path) -> Any:
    content = read_given_yaml(mixture_path, noun="mixture")
    if isinstance(content, dict) and "members" not in content and isinstance(content.get("mixtures"), dict):
        mixtures = content["mixtures"]
        if len(mixtures) != 1:
            raise ArgumentError(f"{mixture_path}: has {len(mixtures)} mixtures, expected one; write a file for each")
        content = next(iter(mixtures.values()))
    return content


def _read(content: Any, role: str, *, context: str, folder: Path | None = None) -> Mixture:
    """Return the mixture of a file, or of an argument if there is no folder; ``role`` is then a split expression."""
    try:
        mixture_file = MixtureFile.model_validate(content)
    except ValidationError as error:
        raise ArgumentError(list_faults(error, context=context)) from None
    members = []
    phase_weights = mixture_file.phase_weights
    for name, entry in mixture_file.members.items():
        weights = tuple(weight_by_member[name] for weight_by_member in phase_weights)
        if all(weight == 0 for weight in weights):
            continue
        if folder is not None:
            entry = in_folder(entry, folder)
        is_expression = folder is None and "splits" not in entry.model_fields_set
        split = (entry.split or role) if is_expression else entry.split_of(role)
        if split is None:
            nearest_role, roles = near_split(role, entry.splits), ", ".join(entry.splits)
            hint = f"did you mean {nearest_role!r}? With" if nearest_role else "with"
            raise ArgumentError(
                f"{context}: members.{name}: split={role!r} is none of its roles ({roles}); {hint} a "
                "named mixture or a file `split` is a role; for split expressions give a mapping of names to weights"
            )
        members.append(
            Member(
                entry.dataset or name,
                split,
                weights,
                offset=entry.offset,
                name=name if entry.dataset else "",
                root=entry.root,
                **_objects(entry, f"{context}: members.{name}"),
            )
        )
    return Mixture(tuple(members), mixture_file.until)


def _objects(entry: MemberEntry, context: str) -> dict[str, Any]:
    """Return what a member has of ``Select``, ``Frames`` and ``Vector``; only some of their fields may differ."""
    kinds: dict[str, tuple[type[ValueObject], tuple[str, ...]]] = {
        "select": (Select, tuple(Select.__dataclass_fields__)),
        "frames": (Frames, ("steps",)),
        "action": (Vector, ("steps", "start", "stride", "columns")),
        "state": (Vector, ("steps", "start", "stride", "columns")),
    }
    objects = {}
    for key, (kind, own_fields) in kinds.items():
        if (value := getattr(entry, key)) is None:
            continue
        try:
            objects[key] = kind.of(key, value)
        except ArgumentError as error:
            raise ArgumentError(f"{context}: {error}") from None
        if shared := [field for field in objects[key].chosen() if field not in own_fields]:
            raise ArgumentError(
                f"{context}: {key}.{shared[0]}: all members have the same; give {shared[0]} to make_loader, and a "
                f"member only {', '.join(own_fields)}"
            )
    return objects
