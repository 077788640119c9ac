"""A mixture opened below a root: everything that defines its samples, their order and their content."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from stream.base.arguments import check_whole
from stream.base.errors import ArgumentError, closest
from stream.batch.cameras import find_cameras
from stream.batch.columns import draw_texts, find_column, find_texts
from stream.batch.dataset_vector import dataset_vector
from stream.batch.resize import Resize
from stream.batch.spaces import check_spaces, dropped_steps
from stream.batch.spec import BatchSpec
from stream.cache.in_place import open_catalog
from stream.format.catalog import Catalog, Dataset
from stream.format.fields import Fields
from stream.format.index import IndexCheck, UsedColumn, used_columns
from stream.format.names import VECTORS, TableKind
from stream.format.spaces import derived_column
from stream.loader.sample_spec import MOST_STEPS, STEPS, SampleSpec
from stream.order.choices import Choice, parse_episodes, parse_keep_ranges
from stream.order.filters import check_stored, parse_filters, settle_missing
from stream.order.member import OpenMember
from stream.order.mix import MixSchedule, Passes, build_mix
from stream.order.mixture import Member, Mixture, resolve_mixture
from stream.order.plan import MAX_SAMPLE, Plan
from stream.order.reference import SampleRef, describe_rows
from stream.order.rows import Rows
from stream.order.sample_index import SampleIndex
from stream.order.shuffle import Shuffle
from stream.order.weights import parse_weights
from stream.order.window import StepSpan, resolve_steps, resolve_windows
from stream.storage.remote import CachedRoot, cached_root, is_remote

_log = logging.getLogger("stream")
_IN_ORDER = 64
"""Records that are read together in storage order."""


class OpenMixture:
    """An open mixture: its samples by number, and the content of its batches.

    Args:
        root: Converted root.
        mixture: Members with split and weights.
        options: Options.
        catalog: Open catalog of the root, to save opening it again.
        batch_size: Rows of the global batch, which a schedule of weights counts in; None if there are no batches.

    Raises:
        ArgumentError: As for ``make_loader``.
    """

    def __init__(
        self,
        root: str | Path | CachedRoot,
        mixture: Mixture,
        options: SampleSpec,
        *,
        catalog: Catalog | None = None,
        batch_size: int | None = None,
    ) -> None:
        catalog = catalog or open_catalog(root)
        self.root = catalog.place
        self.datasets = _open_datasets(mixture.members, catalog)
        stay = check_spaces(
            self.datasets,
            options.spaces,
            {which: options.own_columns(which) for which in VECTORS},
            unmapped=options.unmapped,
            unknown_units=options.unknown_units,
        )
        options = options.without(self._leave(stay))
        members = tuple(compress(mixture.members, stay))
        choices = _choices(members, [dataset.name for dataset in self.datasets], options)
        choices, stay = settle_missing(choices, self.datasets, options.missing)
        # A saved loader has the members that stay, and says nothing of others.
        self.options = options = options.without(self._leave(stay))
        self.mixture = mixture = replace(mixture, members=tuple(compress(members, stay)))
        self.members = members = mixture.members
        self.names = tuple(dataset.name for dataset in self.datasets)
        shuffle = Shuffle.parse(options.shuffle)
        fields = [dataset.fields for dataset in self.datasets]
        self.windows = tuple(resolve_windows(options.frames, fields, self.names))
        pairs = [name for name, each in zip(self.names, fields, strict=True) if each.layout == "pairs"]
        if options.bounds == "clamp" and pairs:
            raise ArgumentError(
                f"bounds='clamp': these datasets hold complete pairs alone: {', '.join(pairs)}; convert them with "
                "`--layout frames`, or take bounds='inside'"
            )
        resize = Resize(options.image_fit, options.image_filter)
        self.cameras = find_cameras(options.cameras, fields, self.names, size=options.image_size, resize=resize)
        weights = parse_weights(options.sample_weights, self.names)
        check_stored("sample_weights", weights, self.datasets)
        self.views = SampleIndex(
            [
                OpenMember(
                    entry=entry,
                    dataset=dataset,
                    window=window,
                    cameras=[stored for camera in self.cameras for stored in camera.stored[number]],
                    choices=choices.get(dataset.name, ()),
                    action_margins=self._action_margins(dataset),
                    clamps=options.bounds == "clamp",
                    weights=weights.get(dataset.name),
                )
                for number, (entry, dataset, window) in enumerate(
                    zip(members, self.datasets, self.windows, strict=True)
                )
            ],
            samples_per_episode=options.samples_per_episode,
        )
        self.sizes: dict[str, int] = dict(zip(self.names, self.views.sizes.tolist(), strict=True))
        self.relative_weights = [
            member.relative_weights(size) for member, size in zip(members, self.sizes.values(), strict=True)
        ]
        self.phase_weights, mix = self._passes(shuffle) if options.passes else self._mix(batch_size)
        num_samples = options.passes and options.passes * int(self.views.sizes.sum())
        self.plan = Plan(mix, self.views, seed=options.seed, shuffle=shuffle, num_samples=num_samples)
        self._warn_of_offsets()

    def _leave(self, stay: Sequence[bool]) -> set[str]:
        """Leave the datasets out that do not stay, and return their names."""
        gone = {dataset.name for dataset, stays in zip(self.datasets, stay, strict=True) if not stays}
        self.datasets = tuple(compress(self.datasets, stay))
        return gone

    def weights_at(self, step: int) -> dict[str, float]:
        """Return the share of each dataset in the samples at a step, a multiple of 2^-20."""
        step = check_whole("step", step, least=0)
        phase = sum(until <= step for until in self.mixture.until)
        return dict(zip(self.names, self.phase_weights[phase], strict=True))

    @property
    def offsets(self) -> tuple[int, ...]:
        """Pair offset of each member, in steps."""
        return tuple(dataset.fields.offset for dataset in self.datasets)

    @cached_property
    def spec(self) -> BatchSpec:
        """Content of a batch."""
        options = self.options
        described = list(map(self.views.most_labelled, range(len(self.members))))
        vectors = {}
        for which in VECTORS:
            chosen = options.own_columns(which)
            for name in chosen:
                if name not in self.names:
                    raise ArgumentError(
                        f"{which}_columns: no member {name!r}; {closest(name, self.names, noun='members')}"
                    )
            vectors[which] = tuple(
                dataset_vector(
                    dataset, which, chosen.get(dataset.name), steps=split.steps, space=options.spaces.get(which)
                )
                for dataset, split in zip(self.datasets, described, strict=True)
            )
        given = {name: getattr(options, name) for name in STEPS}
        fields = [dataset.fields for dataset in self.datasets]
        steps = {
            name: self.offsets
            if value is None
            else resolve_steps(name, value, fields, self.names, least=STEPS[name], most=MOST_STEPS)
            for name, value in given.items()
        }
        spec = BatchSpec(
            datasets=self.names,
            splits=tuple(self.views.splits),
            layouts=tuple(dataset.fields.layout for dataset in self.datasets),
            record_offsets=tuple(dataset.fields.frame_offsets for dataset in self.datasets),
            stored_cameras=tuple(len(dataset.fields.stored_cameras) for dataset in self.datasets),
            cameras=self.cameras,
            windows=self.windows,
            chooses_frames=options.frames is not None or options.cameras is not None or options.bounds == "clamp",
            seed=options.seed,
            metadata=options.metadata,
            actions=vectors["action"],
            states=vectors["state"],
            derived={which: derived_column(which, options.spaces.get(which)) for which in VECTORS},
            rates=tuple(dataset.fields.control_frequency for dataset in self.datasets),
            action=options.action,
            action_span=StepSpan(steps["action_from"], steps["horizon"]),
            state_span=StepSpan(steps["state_from"], steps["state_horizon"]),
            state_has_steps=options.state_horizon != 1,
            languages=() if options.language == "language" else find_texts(options.languages, described, self.names),
            columns=tuple(find_column(name, described, self.names) for name in options.columns),
            num_samples=self.plan.num_samples,
            neighbours=Shuffle.parse(options.shuffle).block or _IN_ORDER,
        )
        spec.check_reduction()
        fixed = {"language", *replace(spec, columns=()).fields()}
        masks = {f"{column.name}_mask" for column in spec.columns if column.dtype is not None}
        for column in spec.columns:
            if column.name in fixed | masks or f"{column.name}_mask" in fixed:
                raise ArgumentError(
                    f"columns: {column.name!r} is a key of the batch already; for the column of that name in a "
                    f"table of the index write episodes.{column.name}, steps.{column.name} or records.{column.name}"
                )
        return spec

    @cached_property
    def check(self) -> IndexCheck:
        """Check that the index belongs to the manifests."""
        found: list[UsedColumn] = []
        for split in self.spec.splits:
            columns = [*self.views.members[split.member].used_columns(split), *self.spec.used_columns(split)]
            most = self.views.most_labelled(split.member)
            found += used_columns(self.datasets[split.member], split, columns, reference=most)
        return IndexCheck(found)

    def describe(self, rows: Rows) -> list[SampleRef]:
        """Return the origin of each row, without reading images."""
        spec = self.spec
        refs = describe_rows(rows, self.views.splits, spec.layouts, spec.window_table)
        return [self._told(ref, rows.cut(row, row + 1)) for row, ref in enumerate(refs)] if spec.languages else refs

    def _told(self, ref: SampleRef, row: Rows) -> SampleRef:
        """Return the origin of a row with the text that was drawn."""
        split, episode = self.views.splits[int(row.split[0])], np.array([ref.episode])
        records = row.record
        if self.spec.layouts[split.member] == "frames":
            records = split.episodes.take("first_record", episode) + ref.step
        at: dict[TableKind, np.ndarray] = {
            "episodes": episode,
            "steps": split.episodes.take("first_steps_row", episode) + ref.step,
            "records": records,
        }
        (text,) = draw_texts(self.spec.languages, split, at, row.sample, seed=self.spec.seed)
        return replace(ref, language=text)

    def overview(self) -> dict[str, dict[str, Any]]:
        """Return the episodes, samples and choices of each dataset, as ``Loader.describe`` documents it."""
        found = {}
        for number, (name, member) in enumerate(zip(self.names, self.views.members, strict=True)):
            splits = self.views.splits_of(number)
            unknown = {choice.reason: len(ids) for choice in member.choices if (ids := choice.unknown_in(splits))}
            ranges: dict[str, list[list[int]]] = {}
            for each in member.ranges:
                ranges.setdefault(each.split, []).append([each.start, each.stop])
            found[name] = {
                "split": member.entry.split,
                "ranges": ranges,
                "episodes": sum(stop - start for each in ranges.values() for start, stop in each),
                "remaining_episodes": self.views.num_episodes(number),
                "samples": self.sizes[name],
                "left_out": self.views.left_out[number],
                "left_out_by_condition": self.views.conditions[number],
                "unknown_episodes": unknown,
                "labels": sorted({name for split in splits for name in split.labels}),
                "damaged": {reason: count for reason, count in member.dataset.manifest.left_out.items() if count},
            }
            if member.weights is not None:
                found[name]["weight_0"] = self.views.weights.zeros(number)
        return found

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that defines the order of samples, and nothing else, as a small JSON object for states.

        Its values are those of arguments, so that a message can name them; data are hashes.
        """
        options = self.options
        members = {
            name: {"index": number, **member.fingerprint(self.views.splits_of(number))}
            for number, (name, member) in enumerate(zip(self.names, self.views.members, strict=True))
        }
        return {
            "seed": options.seed,
            "shuffle": options.shuffle,
            "samples_per_episode": options.samples_per_episode,
            "passes": "complete passes" if options.passes else None,
            "datasets": members,
            "phases": [
                {"until": until, "weights": dict(zip(self.names, weights, strict=True))}
                for until, weights in zip([*self.mixture.until, None], self.phase_weights, strict=True)
            ],
        }

    def content(self) -> dict[str, Any]:
        """Return what defines the batches beside the order of samples, as a small JSON object for states.

        ``data`` has a hash by dataset of the columns that batches read, which hold the hash of every record.
        """
        read: dict[str, list[tuple[str, TableKind, str]]] = {}
        for split in self.spec.splits:
            columns = [(split.split, *column) for column in self.spec.used_columns(split)]
            read.setdefault(self.names[split.member], []).extend(columns)
        hashes = {dataset.name: dataset.fingerprint(read.get(dataset.name, ())) for dataset in self.datasets}
        return {**self.options.content, "data": hashes}

    def _action_margins(self, dataset: Dataset) -> tuple[int, int]:
        """Return the steps at either end of an episode that have too few actions to be samples."""
        space = self.options.action_space
        own = dataset.name in self.options.own_columns("action")
        first, last = (0, 0) if space is None or own else dropped_steps(dataset, space)
        return first, last + self.options.min_actions - 1

    def _passes(self, shuffle: Shuffle) -> tuple[list[list[float]], Passes]:
        """Return the shares of the members in complete passes, and their order."""
        if self.mixture.until:
            raise ArgumentError(
                f"passes={self.options.passes}: the mixture has a schedule of weights, and complete passes have none; "
                "give a mapping of names to weights, or leave passes out"
            )
        sizes = self.views.sizes
        return [(sizes / sizes.sum()).tolist()], Passes(sizes, seed=self.options.seed, shuffle=shuffle)

    def _mix(self, batch_size: int | None) -> tuple[list[list[float]], MixSchedule]:
        """Return the shares of the members in each phase, and the tables that mix them."""
        until = self.mixture.until
        if until and batch_size is None:
            raise ArgumentError("the mixture has a schedule in steps of batches; make_loader takes it")
        try:
            tables = [build_mix(weights) for weights in zip(*self.relative_weights, strict=True)]
        except ValueError as error:
            raise ArgumentError(f"{error}; members are {', '.join(self.names)}") from None
        if len(tables) != len(until) + 1:
            raise ArgumentError(f"mixture: {len(until)} phases end at a step, expected {len(tables) - 1}")
        ends = [each * (batch_size or 0) for each in until]
        if max(ends, default=0) > MAX_SAMPLE:
            most = MAX_SAMPLE // (batch_size or 1)
            raise ArgumentError(f"mixture: a phase ends at step {until[-1]:,}; expected at most {most:,}")
        return [table.weights.tolist() for table in tables], MixSchedule(tables, ends)

    def _warn_of_offsets(self) -> None:
        other = [
            f"{name} {offset} (the mixture says {member.offset})"
            for name, offset, member in zip(self.names, self.offsets, self.members, strict=True)
            if isinstance(member.offset, int) and member.offset != offset
        ]
        if other:
            _log.warning(
                "the pairs have the offsets of the conversion, which differ from the mixture's: %s", ", ".join(other)
            )


def open_mixture(
    root: str | Path | CachedRoot, mixture: Any, *, split: str, options: SampleSpec, batch_size: int | None = None
) -> OpenMixture:
    """Open a mixture below a root; arguments and errors are those of ``make_loader``."""
    catalog = open_catalog(root)
    return OpenMixture(root, resolve_mixture(mixture, split, catalog), options, catalog=catalog, batch_size=batch_size)


def read_mixture_fields(root: str | Path | CachedRoot, mixture: Any, *, split: str) -> list[Fields]:
    """Return a loader's fields of each dataset of a mixture, from the manifests alone."""
    catalog = open_catalog(root)
    members = resolve_mixture(mixture, split, catalog).members
    return [dataset.fields for dataset in _open_datasets(members, catalog)]


def _own_root(root: str, catalog: Catalog) -> str | Path | CachedRoot:
    """Return the root of a member, which shares the cache and its bound with the others if it is remote."""
    place = catalog.place
    return place.member(root) if isinstance(place, CachedRoot) and is_remote(root) else cached_root(root, None)


def _open_datasets(members: Sequence[Member], catalog: Catalog) -> tuple[Dataset, ...]:
    """Return the dataset of each member, by the member's name."""
    catalogs = {None: catalog} | {
        member.root: open_catalog(_own_root(member.root, catalog)) for member in members if member.root is not None
    }
    missing = [
        member.dataset
        for member in members
        if member.dataset.partition(":")[0] not in catalogs[member.root].versions and member.root is None
    ]
    if len(missing) > 1:
        catalog.check_converted()
        raise ArgumentError(
            f"{catalog.place}: {len(missing)} of {len(members)} datasets of the mixture are missing: "
            f"{', '.join(missing)}; convert them, or give a mapping of names to weights without them"
        )
    opened = {
        root: iter(each.open_all([member.dataset for member in members if member.root == root]))
        for root, each in catalogs.items()
    }
    datasets = [next(opened[member.root]) for member in members]
    for dataset in datasets:
        if not dataset.manifest.records:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in dataset.manifest.left_out.items())
            raise ArgumentError(
                f"dataset {dataset.name}: nothing of it was converted ({reasons}); see quarantine.jsonl in "
                f"{dataset.folder}, mend the source, and convert it again"
            )
    names = [member.name or dataset.name for member, dataset in zip(members, datasets, strict=True)]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(
                f"dataset {name} is in the mixture more than once; give it one weight, or its members names of their "
                f"own: {{'{name}_a': {{'dataset': '{name}', ...}}}}"
            )
    return tuple(replace(dataset, name=name) for name, dataset in zip(names, datasets, strict=True))


def _choices(members: Sequence[Member], names: Sequence[str], options: SampleSpec) -> dict[str, list[Choice]]:
    """Return the choices among the samples of each member: those of the options, then its own."""
    found: dict[str, list[Choice]] = {}
    for what, parse in (("filters", parse_filters), ("episodes", parse_episodes), ("keep_ranges", parse_keep_ranges)):
        own = {name: getattr(member, what) for name, member in zip(names, members, strict=True)}
        own = {name: value for name, value in own.items() if value is not None}
        for given in (getattr(options, what), own):
            for name, choices in parse(given, names).items():
                found.setdefault(name, []).extend(choices)
    return found
