"""A mixture opened below a root: everything that defines its samples, their order and their content."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.batch.cameras import find_cameras
from stream.batch.columns import draw_texts, find_column, find_texts
from stream.batch.dataset_vector import check_spaces, converted_vector, dataset_vector, dropped_steps
from stream.batch.pictures.augmentation import Augmentation
from stream.batch.spec import BatchSpec
from stream.batch.vectors import DatasetVector
from stream.cache.in_place import open_catalog
from stream.format.catalog import Catalog
from stream.format.index import IndexCheck, SplitIndex, UsedColumn, used_columns
from stream.format.names import VECTORS, TableKind, VectorName
from stream.format.spaces import derived_column
from stream.loader.members import (
    member_conversions,
    member_frames,
    member_slots,
    member_vectors,
    open_datasets,
    parse_choices,
)
from stream.loader.sample_spec import SampleSpec
from stream.loader.spans import VectorSpans
from stream.order.member import OpenMember
from stream.order.mix import MixSchedule, Passes, build_mix
from stream.order.mixture import Mixture, resolve_mixture
from stream.order.plan import MAX_SAMPLE, Plan
from stream.order.reference import SampleRef, describe_rows
from stream.order.rows import Rows
from stream.order.sample_index import SampleIndex
from stream.order.shuffle import Shuffle
from stream.order.weights import parse_weights
from stream.sample.choices import Choice
from stream.sample.dropout import Dropout
from stream.sample.filters import check_stored, settle_missing
from stream.sample.frames import Frames
from stream.sample.vector import Vector
from stream.sample.window import resolve_windows
from stream.storage.remote import CachedRoot

_log = logging.getLogger("stream")
_OF_MEMBER = ("frames", "action", "state")
"""Choices of a member that replace the loader's."""
_NEIGHBOURS_IN_ORDER = 64
"""Records that are read together in storage order."""


class OpenMixture:
    """An open mixture: its samples by number, and the content of its batches.

    Args:
        root: Converted root.
        mixture: Members with split and weights.
        spec: Samples, and content of their batches.
        catalog: Open catalog of the root, to save opening it again.
        batch_size: Rows of the global batch, the unit of a schedule of weights; None if no batches are made.

    Raises:
        ArgumentError: As for ``make_loader``.
    """

    def __init__(
        self,
        root: str | Path | CachedRoot,
        mixture: Mixture,
        spec: SampleSpec,
        *,
        catalog: Catalog | None = None,
        batch_size: int | None = None,
    ) -> None:
        catalog = catalog or open_catalog(root)
        self.root = catalog.location
        self.datasets = open_datasets(mixture.members, catalog)
        # Drop datasets that do not map to a space first: their columns need not exist for the conditions.
        names = [dataset.name for dataset in self.datasets]
        keeps = check_spaces(self.datasets, member_vectors(mixture.members, names, spec.vectors))
        spec = spec.without(self._drop(keeps))
        members = tuple(compress(mixture.members, keeps))
        names = [dataset.name for dataset in self.datasets]
        choices = parse_choices(members, names, spec.select)
        policies = {
            name: max(spec.select.on_missing_column, member.select.on_missing_column, key="error".__ne__)
            for name, member in zip(names, members, strict=True)
        }
        choices, keeps = settle_missing(choices, self.datasets, policies)
        # A saved loader has only the remaining members.
        self.sample_spec = spec = spec.without(self._drop(keeps))
        self.mixture = replace(mixture, members=tuple(compress(members, keeps)))
        self.members = self.mixture.members
        self.names = tuple(dataset.name for dataset in self.datasets)
        self.vectors = member_vectors(self.members, self.names, spec.vectors)
        fields = [dataset.fields for dataset in self.datasets]
        self._spans = VectorSpans(names=self.names, fields=fields, vectors=self.vectors)
        # Without frames every step is a sample, and only the step t counts.
        frames = Frames([0]) if spec.frames is None else spec.frames
        frame_steps = [frames_of_member.steps for frames_of_member in member_frames(self.members, frames)]
        self.windows = tuple(resolve_windows(frame_steps, fields, self.names))
        if frames.history_dropout and not any(window.history.any() for window in self.windows):
            raise ArgumentError(
                f"frames={frames!r:.100}: history_dropout is of frames before t, and there are none; give some, such "
                "as Frames([-1, 0]), or leave it out"
            )
        pair_datasets = [dataset.name for dataset in self.datasets if dataset.fields.layout == "pairs"]
        if frames.edges == "repeat" and pair_datasets:
            _log.warning(
                "edges='repeat': no sample beyond the edges of %s, which hold only complete pairs; for every step t, "
                "convert with `--layout frames`",
                ", ".join(pair_datasets),
            )
        self.cameras = () if spec.frames is None else find_cameras(spec.frames, fields, self.names)
        self.sample_index = SampleIndex(self._open_members(choices), samples_per_episode=spec.samples_per_episode)
        self.sizes: dict[str, int] = dict(zip(self.names, self.sample_index.sizes.tolist(), strict=True))
        self.relative_weights = [
            member.relative_weights(size) for member, size in zip(self.members, self.sizes.values(), strict=True)
        ]
        shuffle = Shuffle.parse(spec.shuffle)
        self.phase_weights, schedule = self._passes(shuffle) if spec.num_epochs else self._mix(batch_size)
        num_samples = spec.num_epochs and spec.num_epochs * int(self.sample_index.sizes.sum())
        self.plan = Plan(schedule, self.sample_index, seed=spec.seed, shuffle=shuffle, num_samples=num_samples)
        self._warn_of_offsets()

    def _drop(self, keeps: Sequence[bool]) -> set[str]:
        """Drop the datasets that are not kept, and return their names."""
        dropped = {dataset.name for dataset, keep in zip(self.datasets, keeps, strict=True) if not keep}
        self.datasets = tuple(compress(self.datasets, keeps))
        return dropped

    def _open_members(self, choices: Mapping[str, Sequence[Choice]]) -> list[OpenMember]:
        spec = self.sample_spec
        sample_weights = parse_weights(spec.sample_weights, self.names)
        check_stored("sample_weights", sample_weights, self.datasets)
        return [
            OpenMember(
                entry=entry,
                dataset=dataset,
                window=window,
                cameras=[stored for camera in self.cameras for stored in camera.stored[number]],
                choices=choices.get(dataset.name, ()),
                action_margins=self._action_margins(number),
                repeats_edges=spec.frames is not None and spec.frames.edges == "repeat",
                weights=sample_weights.get(dataset.name),
            )
            for number, (entry, dataset, window) in enumerate(
                zip(self.members, self.datasets, self.windows, strict=True)
            )
        ]

    def weights_at(self, step: int) -> dict[str, float]:
        """Return the share of each dataset in the samples at a step, a multiple of 2^-20."""
        step = check_whole_number("step", step, least=0)
        phase = sum(until <= step for until in self.mixture.until)
        return dict(zip(self.names, self.phase_weights[phase], strict=True))

    @property
    def offsets(self) -> tuple[int, ...]:
        """Pair offset of each member, in steps."""
        return tuple(dataset.fields.offset for dataset in self.datasets)

    @cached_property
    def spec(self) -> BatchSpec:
        """Content of a batch."""
        sample_spec = self.sample_spec
        labelled_splits = list(map(self.sample_index.most_labelled, range(len(self.members))))
        action, frames = sample_spec.action, sample_spec.frames
        stored = {name: self._dataset_vectors(name, labelled_splits) for name in VECTORS}
        converted = {name: vector for name, vector in sample_spec.vectors.items() if vector.is_converted}
        states = stored["state"]
        if converted and not states:
            # The action may be relative to a state that batches do not have.
            states = tuple(
                dataset_vector(dataset, "state", Vector(), steps=split.steps)
                for dataset, split in zip(self.datasets, labelled_splits, strict=True)
            )
        relative = {
            name: member_conversions(self.names, name, vector, stored[name], states=states)
            for name, vector in converted.items()
        }
        needs_state = any(conversion.needs_state for conversions in relative.values() for conversion in conversions)
        vectors = {
            name: tuple(map(converted_vector, relative[name])) if name in relative else stored[name] for name in VECTORS
        }
        names_language = sample_spec.language not in (None, "language")
        augment = None if frames is None else frames.augmentation
        state_dropout = sample_spec.state.dropout if sample_spec.state else 0.0
        spec = BatchSpec(
            datasets=self.names,
            splits=tuple(self.sample_index.splits),
            layouts=tuple(dataset.fields.layout for dataset in self.datasets),
            record_offsets=tuple(dataset.fields.frame_offsets for dataset in self.datasets),
            stored_cameras=tuple(len(dataset.fields.stored_cameras) for dataset in self.datasets),
            cameras=self.cameras,
            windows=self.windows,
            chooses_frames=frames is not None and (frames.is_chosen or any(member.frames for member in self.members)),
            seed=sample_spec.seed,
            actions=vectors["action"],
            states=vectors["state"],
            sources={name: stored[name] for name in relative},
            relative=relative,
            per_step=tuple(name for name, vector in sample_spec.vectors.items() if vector.per_step),
            reference=states if needs_state else (),
            derived={
                **{name: derived_column(name, vector.space) for name, vector in sample_spec.vectors.items()},
                "reference": derived_column("state", sample_spec.state.space if sample_spec.state else None),
            },
            rates=tuple(dataset.fields.control_frequency for dataset in self.datasets),
            reduction=action.reduce if action else None,
            has_intervals=bool(action and action.between),
            has_times=frames is not None and frames.times,
            action_span=(
                self._spans.between_frames(self.windows, argument=frames.steps if frames else None)
                if action and action.between
                else self._spans.of_action()
            ),
            state_span=self._spans.of_state(),
            repeated_edges=tuple(name for name, vector in sample_spec.vectors.items() if vector.edges == "repeat"),
            state_has_steps=any(vector.steps not in (None, 1) for vector in self.vectors.get("state", ())),
            has_language=sample_spec.language is not None,
            languages=find_texts(sample_spec.languages, labelled_splits, self.names) if names_language else (),
            columns=tuple(find_column(name, labelled_splits, self.names) for name in sample_spec.columns),
            num_samples=self.plan.num_samples,
            neighbours=Shuffle.parse(sample_spec.shuffle).block or _NEIGHBOURS_IN_ORDER,
            augmentation=Augmentation.of(augment, self.cameras, seed=sample_spec.seed),
            state_dropout=Dropout.of("state", state_dropout, seed=sample_spec.seed),
            history_dropout=Dropout.of("history", frames.history_dropout if frames else 0.0, seed=sample_spec.seed),
            delay=self._spans.delay(action, seed=sample_spec.seed),
            slots={
                name: member_slots(self.names, name, vector, vectors[name], conversions=relative.get(name))
                for name, vector in sample_spec.vectors.items()
                if vector.slots is not None
            },
        )
        spec.check_reduction()
        _check_column_names(spec)
        return spec

    def _dataset_vectors(
        self, vector_name: VectorName, labelled_splits: Sequence[SplitIndex]
    ) -> tuple[DatasetVector, ...]:
        """Return a vector of each dataset; none if batches do not have it."""
        return tuple(
            dataset_vector(dataset, vector_name, vector, steps=split.steps)
            for dataset, split, vector in zip(
                self.datasets, labelled_splits, self.vectors.get(vector_name, ()), strict=vector_name in self.vectors
            )
        )

    @cached_property
    def check(self) -> IndexCheck:
        """Check that the index belongs to the manifests."""
        needed_columns: list[UsedColumn] = []
        for split in self.spec.splits:
            columns = [*self.sample_index.members[split.member].used_columns(split), *self.spec.used_columns(split)]
            labelled_split = self.sample_index.most_labelled(split.member)
            needed_columns += used_columns(self.datasets[split.member], split, columns, reference=labelled_split)
        return IndexCheck(needed_columns)

    def describe(self, rows: Rows) -> list[SampleRef]:
        """Return the origin of each row, without reading images."""
        spec = self.spec
        references = describe_rows(rows, self.sample_index.splits, spec.layouts, spec.window_table)
        if not spec.languages:
            return references
        return [self._with_text(reference, rows.cut(row, row + 1)) for row, reference in enumerate(references)]

    def _with_text(self, reference: SampleRef, row: Rows) -> SampleRef:
        """Return the origin of a row with the text that was drawn."""
        split, episode = self.sample_index.splits[int(row.split[0])], np.array([reference.episode])
        record_numbers = row.record
        if self.spec.layouts[split.member] == "frames":
            record_numbers = split.episodes.take("first_record", episode) + reference.step
        table_rows: dict[TableKind, np.ndarray] = {
            "episodes": episode,
            "steps": split.episodes.take("first_steps_row", episode) + reference.step,
            "records": record_numbers,
        }
        (instruction,) = draw_texts(self.spec.languages, split, table_rows, row.sample, seed=self.spec.seed)
        return replace(reference, language=instruction)

    def overview(self) -> dict[str, dict[str, Any]]:
        """Return the episodes, samples and choices of each dataset, as ``Loader.describe`` documents it."""
        overviews = {}
        for number, (name, member) in enumerate(zip(self.names, self.sample_index.members, strict=True)):
            splits = self.sample_index.splits_of(number)
            ranges: dict[str, list[list[int]]] = {}
            for episodes in member.ranges:
                ranges.setdefault(episodes.split, []).append([episodes.start, episodes.stop])
            unknown = {choice.reason: len(ids) for choice in member.choices if (ids := choice.unknown_in(splits))}
            damaged = member.dataset.manifest.left_out
            overviews[name] = {
                "split": member.entry.split,
                "ranges": ranges,
                "episodes": sum(episodes.stop - episodes.start for episodes in member.ranges),
                "remaining_episodes": self.sample_index.num_episodes(number),
                "samples": self.sizes[name],
                "left_out": self.sample_index.left_out[number],
                "left_out_by_condition": self.sample_index.conditions[number],
                "unknown_episodes": unknown,
                "labels": sorted({label for split in splits for label in split.labels}),
                "damaged": {reason: count for reason, count in damaged.items() if count},
            }
            if member.weights is not None:
                overviews[name]["weight_0"] = self.sample_index.weights.zeros(number)
        return overviews

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that defines the order of samples, and nothing else, as a small JSON object for states.

        Its values are values of arguments, so that a message can name them; data are hashes.
        """
        spec = self.sample_spec
        datasets = {
            name: {"index": number, **member.fingerprint(self.sample_index.splits_of(number))}
            for number, (name, member) in enumerate(zip(self.names, self.sample_index.members, strict=True))
        }
        phases = [
            {"until": until, "weights": dict(zip(self.names, weights, strict=True))}
            for until, weights in zip([*self.mixture.until, None], self.phase_weights, strict=True)
        ]
        return {
            "seed": spec.seed,
            "shuffle": spec.shuffle,
            "samples_per_episode": spec.samples_per_episode,
            "num_epochs": "complete epochs" if spec.num_epochs else None,
            "datasets": datasets,
            "phases": phases,
        }

    def content(self) -> dict[str, Any]:
        """Return everything else that defines the batches, as a small JSON object for states.

        ``data`` has a hash by dataset of the columns that batches read, which include the hash of every record.
        """
        read_columns: dict[str, list[tuple[str, TableKind, str]]] = {}
        for split in self.spec.splits:
            columns = [(split.split, *column) for column in self.spec.used_columns(split)]
            read_columns.setdefault(self.names[split.member], []).extend(columns)
        hashes = {dataset.name: dataset.fingerprint(read_columns.get(dataset.name, ())) for dataset in self.datasets}
        members = {
            name: {field: value.to_json() for field in _OF_MEMBER if (value := getattr(member, field)) is not None}
            for name, member in zip(self.names, self.members, strict=True)
        }
        members = {name: content for name, content in members.items() if content}
        return {**self.sample_spec.content, "members": members, "data": hashes}

    def _action_margins(self, number: int) -> tuple[int, int]:
        """Return the steps at either end of an episode that have too few actions to be samples of a member."""
        first_dropped, last_dropped = 0, 0
        if self.sample_spec.action is not None:
            vector = self.vectors["action"][number]
            if vector.space is not None and vector.columns is None:
                first_dropped, last_dropped = dropped_steps(self.datasets[number], vector.space)
        num_actions = max(self.sample_spec.select.min_future_actions, self.members[number].select.min_future_actions)
        return first_dropped, last_dropped + (num_actions - 1) * self._spans.strides("action")[number]

    def _passes(self, shuffle: Shuffle) -> tuple[list[list[float]], Passes]:
        """Return the shares of the members in complete epochs, and their order."""
        if self.mixture.until:
            raise ArgumentError(
                f"num_epochs={self.sample_spec.num_epochs}: the mixture has a schedule of weights, which complete "
                "epochs do not use; give a mapping of names to weights, or leave num_epochs out"
            )
        sizes = self.sample_index.sizes
        shares = [(sizes / sizes.sum()).tolist()]
        return shares, Passes(sizes, seed=self.sample_spec.seed, shuffle=shuffle)

    def _mix(self, batch_size: int | None) -> tuple[list[list[float]], MixSchedule]:
        """Return the shares of the members in each phase, and the tables that mix them."""
        end_steps = self.mixture.until
        if end_steps and batch_size is None:
            raise ArgumentError("the mixture has a schedule in steps of batches; make_loader takes it")
        try:
            mix_tables = [build_mix(weights) for weights in zip(*self.relative_weights, strict=True)]
        except ValueError as error:
            raise ArgumentError(f"{error}; members are {', '.join(self.names)}") from None
        if len(mix_tables) != len(end_steps) + 1:
            raise ArgumentError(f"mixture: {len(end_steps)} phases end at a step, expected {len(mix_tables) - 1}")
        phase_ends = [phase_end * (batch_size or 0) for phase_end in end_steps]
        if max(phase_ends, default=0) > MAX_SAMPLE:
            largest_step = MAX_SAMPLE // (batch_size or 1)
            raise ArgumentError(f"mixture: a phase ends at step {end_steps[-1]:,}; expected at most {largest_step:,}")
        return [mix_table.weights.tolist() for mix_table in mix_tables], MixSchedule(mix_tables, phase_ends)

    def _warn_of_offsets(self) -> None:
        differences = [
            f"{dataset_name} {offset} (the mixture says {member.offset})"
            for dataset_name, offset, member in zip(self.names, self.offsets, self.members, strict=True)
            if isinstance(member.offset, int) and member.offset != offset
        ]
        if differences:
            _log.warning(
                "the pairs have the offsets of the conversion, which differ from the mixture's: %s",
                ", ".join(differences),
            )


def open_mixture(
    root: str | Path | CachedRoot, mixture: Any, *, split: str, spec: SampleSpec, batch_size: int | None = None
) -> OpenMixture:
    """Open a mixture below a root; arguments and errors are those of ``make_loader``."""
    catalog = open_catalog(root)
    return OpenMixture(root, resolve_mixture(mixture, split, catalog), spec, catalog=catalog, batch_size=batch_size)


def _check_column_names(spec: BatchSpec) -> None:
    """Raise ArgumentError if a column of ``columns=`` has the name of another key of the batch."""
    fixed_keys = {"language", *replace(spec, columns=()).fields()}
    mask_keys = {f"{column.name}_mask" for column in spec.columns if column.dtype is not None}
    for column in spec.columns:
        if column.name in fixed_keys | mask_keys or f"{column.name}_mask" in fixed_keys:
            raise ArgumentError(
                f"columns: {column.name!r} is a key of the batch already; for the column of that name in a "
                f"table of the index write episodes.{column.name}, steps.{column.name} or records.{column.name}"
            )
