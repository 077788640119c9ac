"""Members of a mixture, opened: their datasets, and the choices among their samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stream.base.errors import ArgumentError
from stream.cache.in_place import open_catalog
from stream.format.catalog import Catalog, Dataset
from stream.format.fields import Fields
from stream.loader.sample_spec import SampleSpec
from stream.order.choices import Choice, parse_episodes, parse_keep_ranges
from stream.order.filters import parse_filters
from stream.order.mixture import Member, resolve_mixture
from stream.storage.remote import CachedRoot, cached_root, is_remote

_PARSERS = (("filters", parse_filters), ("episodes", parse_episodes), ("keep_ranges", parse_keep_ranges))


def read_mixture_fields(root: str | Path | CachedRoot, mixture: Any, *, split: str) -> list[Fields]:
    """Return a loader's fields of each dataset of a mixture, from only the manifests."""
    catalog = open_catalog(root)
    members = resolve_mixture(mixture, split, catalog).members
    return [dataset.fields for dataset in open_datasets(members, catalog)]


def _member_root(member_root: str, catalog: Catalog) -> str | Path | CachedRoot:
    """Return the root of a member; a remote root shares the cache of the mixture's root."""
    if isinstance(catalog.location, CachedRoot) and is_remote(member_root):
        return catalog.location.member(member_root)
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


def parse_choices(members: Sequence[Member], dataset_names: Sequence[str], spec: SampleSpec) -> dict[str, list[Choice]]:
    """Return the choices among the samples of each member: the spec's, then the member's."""
    choices_by_dataset: dict[str, list[Choice]] = {}
    for argument, parse_choice in _PARSERS:
        by_member = {name: getattr(member, argument) for name, member in zip(dataset_names, members, strict=True)}
        by_member = {name: value for name, value in by_member.items() if value is not None}
        for values in (getattr(spec, argument), by_member):
            for name, choices in parse_choice(values, dataset_names).items():
                choices_by_dataset.setdefault(name, []).extend(choices)
    return choices_by_dataset
