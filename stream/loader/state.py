"""States of iterators: small JSON objects, compared with the loader that they are set in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError, FormatError, StateError
from stream.base.reading import read_limited
from stream.storage.files import write_atomically

STATE_VERSION = 2
_MAX_FILE_BYTES = 1 << 30
"""Size limit of ``loader.json``; keep ranges of a million episodes take 200 MB."""
_MEMBER_WORDS = {
    "index": "position in the mixture",
    "margins": "steps before and after t that frames= needs",
    "action_margins": "steps at either end of an episode that min_future_actions and the space of the action leave out",
    "holes": "frames that must exist, by frames=",
}
"""Words for the fields of ``OpenMember.fingerprint`` that do not have the name of an argument."""
_DATA_WORDS = {
    "episodes": "episodes and steps",
    "where": "columns that where= reads",
    "sample_weights": "column of sample_weights=",
    "holes": "missing frames",
}
"""Words for the hashes of data of ``OpenMember.fingerprint``."""
OFF: dict[str, Any] = {
    "frames.history_dropout": 0.0,
    **{f"{name}.{field}": 0 for name in ("action", "state") for field in ("dropout", "min_delay", "max_delay")},
}
"""Values of the content that a state lacks where they are off."""
_MAX_LISTED = 5
"""Differences that a message lists."""


def make_state(
    step: int,
    fingerprint: Mapping[str, Any],
    *,
    content: Mapping[str, Any] | None = None,
    random_ranks: int | None = None,
) -> dict[str, Any]:
    """Return the state of an iterator.

    Args:
        step: Step of the next batch.
        fingerprint: Everything that defines the order of samples (``Loader.fingerprint``).
        content: Everything else that defines the batches (``Loader.content``).
        random_ranks: Number of ranks, if a transform draws random numbers by rank (``RunConfig.random_ranks``).
    """
    state = {
        "version": STATE_VERSION,
        "step": check_whole_number("step", step, least=0),
        "fingerprint": dict(fingerprint),
    }
    optional = {"content": None if content is None else dict(content), "random_ranks": random_ranks}
    return {**state, **{name: value for name, value in optional.items() if value is not None}}


def read_state(state: Any, fingerprint: Mapping[str, Any], *, random_ranks: int | None = None) -> int:
    """Return the step of a state.

    Args:
        state: Any value.
        fingerprint: Fingerprint of this loader.
        random_ranks: This loader's ``RunConfig.random_ranks``.

    Raises:
        StateError: The value is not a state, or belongs to another order; the message names each difference.
    """
    if not isinstance(state, Mapping) or not {"version", "step", "fingerprint"} <= set(state):
        raise StateError(
            f"{state!r:.100}: not a state of a loader, expected a mapping with version, step and fingerprint"
        )
    if state["version"] != STATE_VERSION:
        raise StateError(f"state of version {state['version']!r}, this program reads version {STATE_VERSION}")
    step = state["step"]
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise StateError(f"state with step {step!r}; expected a whole number >= 0")
    difference = describe_order(_up_to(state["fingerprint"], step), _up_to(fingerprint, step))
    if difference:
        raise StateError(
            f"the state belongs to another order of samples: {difference}. Make the loader with the arguments of the "
            "state, or begin at step 0 with this loader"
        )
    saved_ranks = state.get("random_ranks")
    if saved_ranks is not None and random_ranks is not None and saved_ranks != random_ranks:
        raise StateError(
            f"the state is of {saved_ranks!r:.20} ranks, this loader of {random_ranks}, and a RandomMap draws its "
            "random numbers by rank, so the batches would differ. Continue with the same number of ranks, or draw "
            "from stream.row_random in a Map, which depends only on the sample"
        )
    return step


def _up_to(fingerprint: Any, step: int) -> Any:
    """Return the part of a fingerprint that defines the samples before a step; later phases may differ."""
    try:
        phases = _phases_up_to(fingerprint["phases"], step)
        drawn_datasets = {name for phase in phases for name in phase["weights"]}
        datasets = {name: entry for name, entry in fingerprint["datasets"].items() if name in drawn_datasets}
        return {**fingerprint, "datasets": datasets, "phases": dict(enumerate(phases, 1))}
    except (AttributeError, KeyError, TypeError):
        return fingerprint


def _phases_up_to(phases: Any, step: int) -> list[dict[str, Any]]:
    """Return the phases that begin before a step, without an end after it and without weights of 0."""
    earlier_phases = []
    phase_start = 0
    for phase in phases:
        if phase_start < max(step, 1):
            # An end at or after the step has not changed any sample yet.
            phase_end = phase["until"] if phase["until"] is not None and phase["until"] < step else None
            weights = {name: weight for name, weight in phase["weights"].items() if weight}
            earlier_phases.append({"until": phase_end, "weights": weights})
        phase_start = step if phase["until"] is None else phase["until"]
    return earlier_phases


class Difference(NamedTuple):
    """A value that differs; None where one side lacks it."""

    path: tuple[str, ...]
    saved: Any
    current: Any

    @property
    def is_argument_of_dataset(self) -> bool:
        """True for ``("datasets", name, argument, ...)``."""
        return self.path[:1] == ("datasets",) and len(self.path) > 2 and self.path[2] != "data"

    @property
    def is_data_of_dataset(self) -> bool:
        """True for ``("datasets", name, "data", ...)``: hashes of columns."""
        return self.path[:1] == ("datasets",) and self.path[2:3] == ("data",)


def find_differences(saved: Any, current: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Yield the differences of two JSON values, in the order of the current one.

    >>> [tuple(difference) for difference in find_differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}})]
    [(('a', 'b'), 1, 3), (('c',), 2, None)]
    """
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        for key in [*current, *(key for key in saved if key not in current)]:
            yield from find_differences(saved.get(key), current.get(key), (*path, str(key)))
    elif saved != current:
        yield Difference(path, saved, current)


def describe_order(saved: Any, current: Mapping[str, Any]) -> str:
    """Return what differs in the order of samples, with the new and the old value; empty if nothing does.

    Args:
        saved: Fingerprint of the state, any value.
        current: Fingerprint of this loader.
    """
    differences = list(find_differences(saved, current))
    # Other arguments read other columns, so data count only where no argument of their dataset differs.
    explained = {difference.path[1] for difference in differences if difference.is_argument_of_dataset}
    datasets_by_text: dict[str, list[str]] = {}
    for difference in differences:
        if difference.is_argument_of_dataset:
            _, dataset_name, field, *_ = difference.path
            text = _changed(_MEMBER_WORDS.get(field, field), difference.current, difference.saved)
            datasets_by_text.setdefault(text, []).append(dataset_name)
        elif not difference.is_data_of_dataset:
            datasets_by_text.setdefault(_describe_loader(difference), [])
        elif difference.path[1] not in explained:
            columns = _DATA_WORDS.get(difference.path[-1], "columns")
            text = f"data of {difference.path[1]!r}, which were converted or labelled again: other {columns}"
            datasets_by_text.setdefault(text, [])
    num_datasets = len(current.get("datasets", ()))
    return _join(
        [
            f"{text} ({', '.join(names)})" if 0 < len(names) < num_datasets else text
            for text, names in datasets_by_text.items()
        ]
    )


def describe_content(saved: Any, current: Mapping[str, Any]) -> str:
    """Return what differs in the content of batches, with the new and the old value; empty if nothing does.

    Args:
        saved: ``content`` of the state, any value.
        current: Content of this loader.
    """
    if not isinstance(saved, Mapping):
        return ""
    # A state without these values has them off, but hashes of data alone say nothing of them.
    off = {} if set(saved) <= {"data"} else OFF
    saved_values, current_values = {**off, **saved}, {**off, **current}
    shared = [name for name in current_values if name in saved_values and name != "data"]
    differences = [
        _changed(name, current_values[name], saved_values[name])
        for name in shared
        if current_values[name] != saved_values[name]
    ]
    saved_hashes = saved.get("data")
    if not differences and isinstance(saved_hashes, Mapping):
        # The hashes are of the columns that these arguments read, and of datasets that both loaders have.
        for dataset_name, data_hash in current.get("data", {}).items():
            if saved_hashes.get(dataset_name, data_hash) != data_hash:
                differences.append(f"data of {dataset_name!r}, which were converted or labelled again")
    return _join(differences)


def _join(differences: list[str]) -> str:
    remainder = [f"and {len(differences) - _MAX_LISTED} more"] if len(differences) > _MAX_LISTED else []
    return "; ".join([*differences[:_MAX_LISTED], *remainder])


def _changed(name: str, current: Any, saved: Any) -> str:
    return f"{name}: {current!r:.100} was {saved!r:.100}"


def _describe_loader(difference: Difference) -> str:
    """Return the text of a difference that is not inside of a dataset."""
    field, *inner = difference.path or ("fingerprint",)
    if field == "datasets" and inner:
        return f"mixture: {inner[0]!r} is {'new' if difference.saved is None else 'in the state only'}"
    name = "mixture" if field in ("phases", "datasets") else field
    if field == "phases" and inner:
        phase = f"phase {inner[0]} of the mixture"
        name = f"end of {phase}" if inner[1:] == ["until"] else phase
        if len(inner) == 3:
            name = f"weight of {inner[2]!r} in {phase}"
    return _changed(name, difference.current, difference.saved)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically; raises ArgumentError if ``read_json`` would refuse its size."""
    json_text = json.dumps(content, indent=1) + "\n"
    if len(json_text) > _MAX_FILE_BYTES:
        raise ArgumentError(
            f"{path}: would have {len(json_text):,} bytes, at most {_MAX_FILE_BYTES:,}; give episodes and keep_ranges "
            "as files"
        )
    write_atomically(path, json_text, parents=True)


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of ``loader.json``; raises StateError if it is missing or something else."""
    try:
        content = json.loads(read_limited(path, _MAX_FILE_BYTES))
    except FormatError as error:
        raise StateError(f"{path}: {error}, so not a loader.json") from None
    except OSError as error:
        raise StateError(f"{path}: cannot be read ({error.strerror}); give the loader.json of a run") from None
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(content, dict) or content.get("format") != "stream-loader":
        raise StateError(f"{path}: not a loader.json; loader.save() writes one")
    if content.get("version") != STATE_VERSION:
        raise StateError(f"{path}: version {content.get('version')!r}, this program reads version {STATE_VERSION}")
    return content
