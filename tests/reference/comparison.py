"""The comparison of a loader with the reference, over epochs and ranks and for single steps."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from stream import make_loader
from stream.base.errors import ArgumentError
from tests.reference.configurations import Configuration
from tests.reference.rows import Rows
from tests.reference.samples import (
    Member,
    Refused,
    Sample,
    loaded_cameras,
    of_epoch,
    requests,
    settle,
    value_of,
    weights_of,
)

FAR = 10**7
"""A step whose batch is compared too."""
_MOST = 600


def compare(configuration: Configuration, folder: Path, *, workers: int = 0) -> str:
    """Compare the loader of a configuration with the reference.

    Returns ``compared``, or ``refused`` if both refuse the arguments. Raises AssertionError for any difference.
    """
    arguments = configuration.arguments(folder)
    try:
        rows, epochs = _reference(configuration)
    except Refused as reason:
        try:
            make_loader(**arguments)
        except ArgumentError:
            return "refused"
        raise AssertionError(f"accepted what the reference refuses: {reason}") from None
    loader = make_loader(**arguments)
    assert loader.dataset_names == tuple(member.name for member in rows.members)
    sizes = [_size(epoch, configuration.case["samples_per_episode"]) for epoch in epochs]
    assert list(loader.sizes.values()) == sizes
    num_epochs = configuration.case["num_epochs"]
    total = num_epochs * sum(sizes) if num_epochs else min(_MOST, 2 * sum(sizes) + 40)
    batches = -(-total // configuration.batch_size)
    drawn = [_sample(ref, rows.members, configuration.case) for step in range(batches) for ref in loader.describe(step)]
    if num_epochs:
        assert len(drawn) == total
    for number, epoch in enumerate(epochs):
        mine = [sample for member, sample in drawn if member == number]
        _check_epochs(
            mine, epoch, sizes[number], configuration.case, weights_of(rows.members[number], epoch, configuration.case)
        )
    if num_epochs:
        _check_complete([member for member, _ in drawn], sizes)
    else:
        _check_weights([member for member, _ in drawn], loader, configuration, rows.members)
    for step in {0, batches // 2, batches - 1} | (set() if num_epochs else {FAR}):
        _check_batch(loader.batch_at(step), loader.describe(step), rows)
    if configuration.number % 3 == 1 or configuration.case["sample_weights"]:
        _check_ranks(arguments, loader, batches if num_epochs else 2, ranks=configuration.ranks, workers=workers)
    return "compared"


def _check_ranks(arguments: Mapping[str, Any], loader: Any, steps: int, *, ranks: int, workers: int) -> None:
    """Check that the batches of all ranks are the global batch, bitwise; the end of the epochs has more rows."""
    parts = [make_loader(**arguments, rank=rank, world_size=ranks, num_workers=workers) for rank in range(ranks)]
    iterators = [iter(part) for part in parts]
    for step in range(steps):
        _check_parts([next(iterator) for iterator in iterators], loader.batch_at(step))
    for iterator in iterators:
        if arguments["num_epochs"]:
            assert next(iterator, None) is None
        iterator.close()


def _reference(configuration: Configuration) -> tuple[Rows, list[list[Sample]]]:
    """Return the rows and epochs of the reference; raises Refused if there is no such loader."""
    case = configuration.case
    members = settle(configuration.members, case)
    if configuration.phases and (
        case["num_epochs"] or not any(member.name in configuration.early for member in members)
    ):
        raise Refused("a schedule of complete epochs, or a phase without members")
    rows = Rows(members, case)
    epochs = [of_epoch(member, case) for member in members]
    if not all(epochs):
        raise Refused("a member without samples")
    for member, epoch in zip(members, epochs, strict=True):
        weights_of(member, epoch, case)
    for request in requests(case):
        shown = [(member, member.camera(request.camera)) for member in members]
        sizes = [member.source.sizes(camera) for member, camera in shown if camera is not None]
        if not sizes:
            raise Refused(f"nobody has {request.camera}")
        if request.size is None and len(set.union(*sizes)) > 1:
            raise Refused("pictures of two sizes")
    if not all(loaded_cameras(member, case) for member in members):
        raise Refused("a member without any of the cameras")
    for column in case["columns"]:
        if not any(_has(member, column) for member in members):
            raise Refused(f"nobody has {column}")
    return rows, epochs


def _has(member: Member, column: str) -> bool:
    name = column.partition(".")[2] or column
    if column.startswith("records."):
        return True
    return any(
        name in episode.steps or name in episode.facts
        for split in member.source.splits
        for episode in member.source.episodes(split)
    )


def _size(epoch: Sequence[Sample], samples_per_episode: int) -> int:
    return samples_per_episode * len(_units(epoch)) if samples_per_episode else len(epoch)


def _units(epoch: Sequence[Sample]) -> list[list[Sample]]:
    """Return the samples of each episode, one list for each time that the split names it."""
    units: list[list[Sample]] = []
    for sample in epoch:
        if not units or units[-1][-1][:2] != sample[:2] or units[-1][-1].step >= sample.step:
            units.append([])
        units[-1].append(sample)
    return units


def _sample(ref: Any, members: Sequence[Member], case: Mapping[str, Any]) -> tuple[int, Sample]:
    number = [member.name for member in members].index(ref.dataset)
    sample = Sample(ref.split, ref.episode, ref.step)
    episode = members[number].find(sample)
    assert (ref.episode_id, ref.source_file) == (episode.facts["episode_id"], episode.facts["source_file"])
    language = case["language"] or "language"
    columns = [language] if isinstance(language, str) else language
    texts = {value_of(members[number], episode, ref.step, f"steps.{column}") for column in columns} - {"", None}
    assert ref.language in (texts or {""})
    return number, sample


def _check_epochs(
    drawn: Sequence[Sample],
    epoch: Sequence[Sample],
    size: int,
    case: Mapping[str, Any],
    weights: Sequence[Fraction] | None,
) -> None:
    """Each epoch has the samples of the reference, in an order that ``shuffle`` allows; the last one is incomplete."""
    if per_episode := case["samples_per_episode"]:
        _check_draws(drawn, epoch, per_episode)
        return
    if weights is not None:
        _check_weighted(drawn, epoch, case, weights)
        return
    expected = Counter(epoch)
    for first in range(0, len(drawn), size):
        samples = list(drawn[first : first + size])
        if len(samples) == size:
            assert Counter(samples) == expected
        else:
            assert Counter(samples) <= expected
        if case["shuffle"] == "none":
            assert samples == list(epoch[: len(samples)])
        elif case["shuffle"].startswith("block:") and not case["num_epochs"]:
            block = int(case["shuffle"][6:])
            blocks = [sorted(epoch[start : start + block]) for start in range(0, size, block)]
            for start in range(0, len(samples) - block + 1, block):
                assert sorted(samples[start : start + block]) in blocks


def _check_weighted(
    drawn: Sequence[Sample], epoch: Sequence[Sample], case: Mapping[str, Any], weights: Sequence[Fraction]
) -> None:
    """Each epoch draws each sample floor or ceil of its share, in storage order without a shuffle."""
    total, size = sum(weights), len(epoch)
    least: Counter[Sample] = Counter()
    most: Counter[Sample] = Counter()
    for sample, weight in zip(epoch, weights, strict=True):
        least[sample] += math.floor(size * weight / total)
        most[sample] += math.ceil(size * weight / total)
    positions = {sample: position for position, sample in enumerate(epoch)}
    for first in range(0, len(drawn), size):
        samples = list(drawn[first : first + size])
        counts = Counter(samples)
        assert all(count <= most[sample] for sample, count in counts.items())
        if len(samples) == size:
            assert all(counts[sample] >= count for sample, count in least.items())
        if case["shuffle"] == "none" and len(positions) == size:
            assert samples == sorted(samples, key=positions.__getitem__)


def _check_draws(drawn: Sequence[Sample], epoch: Sequence[Sample], per_episode: int) -> None:
    """Each epoch draws ``per_episode`` samples of each episode, and all of them come equally often."""
    units = _units(epoch)
    lengths = {unit[0][:2]: len(unit) for unit in units}
    if len(lengths) < len(units):  # a split that names episodes twice
        return
    size = per_episode * len(units)
    epochs = len(drawn) // size
    for number in range(epochs):
        counts = Counter(sample[:2] for sample in drawn[number * size : (number + 1) * size])
        assert counts == dict.fromkeys(lengths, per_episode)
    counted = Counter(drawn[: epochs * size])
    assert set(counted) <= set(epoch)
    for sample in epoch if epochs else ():
        total = epochs * per_episode
        assert total // lengths[sample[:2]] <= counted[sample] <= -(-total // lengths[sample[:2]])


def _check_complete(members: Sequence[int], sizes: Sequence[int]) -> None:
    for first in range(0, len(members), sum(sizes)):
        assert Counter(members[first : first + sum(sizes)]) == dict(enumerate(sizes))


def _check_weights(drawn: Sequence[int], loader: Any, configuration: Configuration, members: Sequence[Member]) -> None:
    """Check that the count of each member is within two of its share at every prefix of a phase."""
    ends = [*(until * configuration.batch_size for until in configuration.phases), len(drawn)]
    begin = 0
    for end in ends:
        weights = list(loader.weights_at(begin // configuration.batch_size).values())
        phase_members = np.array(drawn[begin:end])
        for number, weight in enumerate(weights):
            counts = np.cumsum(phase_members == number)
            assert np.abs(counts - weight * np.arange(1, len(phase_members) + 1)).max(initial=0) < 2
        begin = end
    if not configuration.phases:
        sizes = loader.sizes.values()
        expected = np.array([_weight(member.weight, size) for member, size in zip(members, sizes, strict=True)])
        np.testing.assert_allclose(list(loader.weights.values()), expected / expected.sum(), atol=2.0**-20)


def _weight(weight: Any, size: int) -> float:
    if weight == "size":
        return size
    return weight["factor"] * size ** weight["size_power"] if isinstance(weight, dict) else weight


def _check_batch(batch: Mapping[str, Any], refs: Sequence[Any], rows: Rows) -> None:
    assert len(batch["sample"]) == len(refs)
    assert "sample_mask" not in batch or batch["sample_mask"].all()
    assert ("language" in batch) == (rows.case["language"] is not None)
    for row, ref in enumerate(refs):
        number, sample = _sample(ref, rows.members, rows.case)
        assert batch["sample"][row] == ref.sample
        assert ref.language == (batch["language"][row] if rows.case["language"] else ref.language)
        rows.check(number, sample, {key: value[row] for key, value in batch.items()})


def _check_parts(parts: Sequence[Mapping[str, Any]], batch: Mapping[str, Any]) -> None:
    rows = len(batch["sample"])
    for key, value in batch.items():
        if isinstance(value, list):
            assert list(itertools.chain(*(part[key] for part in parts)))[:rows] == value
        else:
            np.testing.assert_array_equal(np.concatenate([part[key] for part in parts])[:rows], value, err_msg=key)
    if "sample_mask" in batch:
        mask = np.concatenate([part["sample_mask"] for part in parts])
        assert mask.tolist() == [row < rows for row in range(len(mask))]
    assert len({len(part["sample"]) for part in parts}) == 1
    assert all(part.keys() == batch.keys() for part in parts)
