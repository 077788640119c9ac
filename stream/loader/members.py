"""Members of a mixture, opened: their datasets, and the choices among their samples."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stream.base.errors import ArgumentError, closest
from stream.batch.vectors import DatasetVector
from stream.cache.in_place import open_catalog
from stream.format.catalog import Catalog, Dataset
from stream.format.fields import Fields
from stream.format.names import VectorName
from stream.order.mixture import Member, resolve_mixture
from stream.sample.choices import REASONS, Choice
from stream.sample.frames import Frames
from stream.sample.relative import RelativeVector
from stream.sample.relative_plan import plan_relative
from stream.sample.select import Select
from stream.sample.slot_layout import plan_slots, read_layout
from stream.sample.slots import Slots
from stream.sample.vector import Vector
from stream.storage.cache_folder import cached_root
from stream.storage.hub import pin_commit
from stream.storage.remote import CachedRoot, checked_url, is_remote

_log = logging.getLogger("stream")


def read_mixture_fields(root: str | Path | CachedRoot, mixture: Any, *, split: str) -> list[Fields]:
    """Return a loader's fields of each dataset of a mixture, from only the manifests."""
    catalog = open_catalog(root)
    members = resolve_mixture(mixture, split, catalog).members
    return [dataset.fields for dataset in open_datasets(members, catalog)]


def _member_root(member_root: str, catalog: Catalog) -> str | Path | CachedRoot:
    """Return the root of a member; a remote root shares the cache of the mixture's root."""
    if isinstance(catalog.location, CachedRoot) and is_remote(member_root):
        return catalog.location.member(pin_commit(checked_url(member_root)))
    return cached_root(member_root, None)


def open_datasets(members: Sequence[Member], catalog: Catalog) -> tuple[Dataset, ...]:
    """Return the dataset of each member, by the member's name."""
    catalogs = {None: catalog} | {
        member.root: open_catalog(_member_root(member.root, catalog)) for member in members if member.root is not None
    }
    # One missing dataset is the error of its catalog, which names the closest.
    in_root = [member.dataset for member in members if member.root is None]
    missing = [dataset_name for dataset_name in in_root if dataset_name.partition(":")[0] not in catalog.versions]
    if len(missing) > 1:
        catalog.check_converted()
        raise ArgumentError(
            f"{catalog.location}: {len(missing)} of {len(members)} datasets of the mixture are missing: "
            f"{', '.join(missing)}; convert them, or give a mapping of names to weights without them"
        )
    opened: dict[str | None, Iterator[Dataset]] = {}
    for root, root_catalog in catalogs.items():
        opened[root] = iter(root_catalog.open_all([member.dataset for member in members if member.root == root]))
    datasets = [next(opened[member.root]) for member in members]
    for dataset in datasets:
        if not dataset.manifest.records:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in dataset.manifest.left_out.items())
            raise ArgumentError(
                f"dataset {dataset.name}: nothing of it was converted ({reasons}); see quarantine.jsonl in "
                f"{dataset.folder}, mend the source, and convert it again"
            )
    named = [
        replace(dataset, name=member.name or dataset.name) for member, dataset in zip(members, datasets, strict=True)
    ]
    for dataset_name, count in Counter(dataset.name for dataset in named).items():
        if count > 1:
            raise ArgumentError(
                f"dataset {dataset_name} is in the mixture more than once; give it one weight, or each member its own "
                f"name: {{'{dataset_name}_a': {{'dataset': '{dataset_name}', ...}}}}"
            )
    return tuple(named)


def parse_choices(members: Sequence[Member], dataset_names: Sequence[str], select: Select) -> dict[str, list[Choice]]:
    """Return the choices among the samples of each member: the call's, then the member's."""
    choices_by_dataset = select.choices(dataset_names)
    for dataset_name, member in zip(dataset_names, members, strict=True):
        own_choices = member.select.choices([dataset_name])
        choices_by_dataset.setdefault(dataset_name, []).extend(own_choices.get(dataset_name, ()))
    for choices in choices_by_dataset.values():
        choices.sort(key=lambda choice: REASONS.index(choice.reason))
    return choices_by_dataset


def member_frames(members: Sequence[Member], frames: Frames) -> list[Frames]:
    """Return the frames of each member: the call's, with the member's own steps if it has some."""
    return [replace(frames, steps=member.frames.steps) if member.frames else frames for member in members]


def member_vectors(
    members: Sequence[Member], dataset_names: Sequence[str], vectors: Mapping[VectorName, Vector]
) -> dict[VectorName, list[Vector]]:
    """Return the vectors of each member: the call's, with what the member itself gives; columns are a list, or None.

    Raises:
        ArgumentError: The columns name an unknown member, or a member's fields do not fit those of the call.
    """
    by_member: dict[VectorName, list[Vector]] = {}
    for vector_name, vector in vectors.items():
        for name in vector.columns if isinstance(vector.columns, Mapping) else ():
            if name not in dataset_names:
                available = closest(name, dataset_names, noun="members")
                raise ArgumentError(f"{vector_name}=Vector(columns=...): no member {name!r}; {available}")
        by_member[vector_name] = []
        for member, dataset_name in zip(members, dataset_names, strict=True):
            member_vector = getattr(member, vector_name)
            fields = {} if member_vector is None else member_vector.chosen()
            columns = fields.pop("columns", None)
            if isinstance(columns, Mapping):
                raise ArgumentError(
                    f"mixture: {dataset_name}: {vector_name}.columns={columns!r:.100}; expected a list of its columns"
                )
            columns = vector.columns_of(dataset_name) if columns is None else columns
            try:
                by_member[vector_name].append(replace(vector, columns=columns, **fields))
            except ArgumentError as error:
                raise ArgumentError(f"mixture: {dataset_name}: {vector_name}: {error}") from None
    return by_member


def member_conversions(
    names: Sequence[str],
    vector_name: VectorName,
    vector: Vector,
    stored: Sequence[DatasetVector],
    *,
    states: Sequence[DatasetVector],
) -> tuple[RelativeVector, ...]:
    """Return the conversion of a vector of each member; ``states`` are what it may be relative to."""
    return tuple(
        plan_relative(
            dims,
            state,
            relative_to=vector.relative_to,
            poses=vector.poses,
            rotation=vector.rotation,
            absolute=vector.absolute,
            context=f"dataset {dataset_name}: {vector_name}",
            is_state=vector_name == "state",
        )
        for dataset_name, dims, state in zip(names, stored, states, strict=True)
    )


def member_slots(
    dataset_names: Sequence[str],
    vector_name: VectorName,
    vector: Vector,
    dataset_vectors: Sequence[DatasetVector],
    *,
    conversions: Sequence[RelativeVector] | None,
) -> tuple[Slots, ...]:
    """Return the slots of each member in the layout of a vector.

    Args:
        dataset_names: Names of the members.
        vector_name: ``action`` or ``state``.
        vector: Vector with a layout.
        dataset_vectors: Vector of each member as batches have it, after its conversion.
        conversions: Conversion of each member's vector, if any.

    Raises:
        ArgumentError: Dimensions have no slot, or a padded vector is wider than the layout; lists all of them.
    """
    assert vector.slots is not None
    layout, lines, slots = read_layout(vector.slots), [], []
    for number, (name, dataset_vector) in enumerate(zip(dataset_names, dataset_vectors, strict=True)):
        planned, reasons = plan_slots(
            dataset_vector,
            layout,
            conversion=conversions[number] if conversions else None,
            keeps_unknown_units=vector.on_unknown_units == "keep",
        )
        slots.append(planned)
        lines += [f"{name}: {reason}" for reason in reasons]
    if lines:
        shown = vector.slots if isinstance(vector.slots, int | str) else "a layout"
        context, listed = f"{vector_name}=Vector(slots={shown!r})", "\n  ".join(lines)
        if not layout.slots:
            raise ArgumentError(
                f"{context} pads to {layout.size} numbers, and these are wider; take a larger width, or choose "
                f"dimensions by columns= or space=:\n  {listed}"
            )
        if vector.on_unmapped == "error":
            raise ArgumentError(
                f"{context}: dimensions without a slot; on_unmapped='drop' leaves them out, columns= and space= choose "
                f"others, and a layout of your own may take them:\n  {listed}"
            )
        _log.info("%s leaves out dimensions without a slot:\n  %s", context, listed)
    return tuple(slots)
