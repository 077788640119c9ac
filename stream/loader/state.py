"""States of iterators: small JSON, made, checked and compared with the loader that it is set in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stream.base.arguments import check_whole
from stream.base.errors import ArgumentError, FormatError, StateError
from stream.base.reading import read_whole
from stream.storage.files import write_whole

STATE_VERSION = 2
_MAX_BYTES = 1 << 30
"""Size limit of ``loader.json``; keep ranges of a million episodes take 200 MB."""
_MEMBER_WORDS = {
    "index": "place in the mixture",
    "margins": "steps before and after t that frames= and bounds= need",
    "action_margins": "steps at either end of an episode that min_actions= and action_space= leave out",
    "holes": "frames that must exist, by cameras= and frames=",
}
"""Words for the fields of ``OpenMember.fingerprint`` that do not have the name of an argument."""
_DATA_WORDS = {
    "episodes": "episodes and steps",
    "filters": "columns that filters= reads",
    "sample_weights": "column of sample_weights=",
    "holes": "missing frames",
}
"""Words for the hashes of data of ``OpenMember.fingerprint``."""
_MOST = 5
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
        random_ranks: Number of ranks, if a transform draws random numbers by rank (``Running.random_ranks``).
    """
    state = {"version": STATE_VERSION, "step": check_whole("step", step, least=0), "fingerprint": dict(fingerprint)}
    optional = {"content": None if content is None else dict(content), "random_ranks": random_ranks}
    return {**state, **{name: value for name, value in optional.items() if value is not None}}


def read_state(state: Any, fingerprint: Mapping[str, Any], *, random_ranks: int | None = None) -> int:
    """Return the step of a state.

    Args:
        state: Any value.
        fingerprint: Fingerprint of this loader.
        random_ranks: This loader's ``Running.random_ranks``.

    Raises:
        StateError: The value is not a state, or belongs to another order; names what differs, and both values.
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
            f"the state belongs to another order of samples: {difference}. Make the loader as it was then, or begin "
            "at step 0 with this one"
        )
    drawn = state.get("random_ranks")
    if drawn is not None and random_ranks is not None and drawn != random_ranks:
        raise StateError(
            f"the state is of {drawn!r:.20} ranks, here are {random_ranks}, and a RandomMap draws its random numbers "
            "by rank, so the batches would differ. Go on with the same number of ranks, or draw from stream.row_random "
            "in a Map, which depends on the sample alone"
        )
    return step


def _up_to(fingerprint: Any, step: int) -> Any:
    """Return the part of a fingerprint that defines the samples before a step; later phases may differ."""
    try:
        phases: list[dict[str, Any]] = []
        begin = 0
        for phase in fingerprint["phases"]:
            if begin < max(step, 1):
                until = phase["until"] if phase["until"] is not None and phase["until"] < step else None
                weights = {name: weight for name, weight in phase["weights"].items() if weight}
                phases.append({"until": until, "weights": weights})
            begin = step if phase["until"] is None else phase["until"]
        drawn = {name for phase in phases for name in phase["weights"]}
        datasets = {name: entry for name, entry in fingerprint["datasets"].items() if name in drawn}
        rest = {key: value for key, value in fingerprint.items() if key not in ("phases", "datasets")}
        return {**rest, "datasets": datasets, "phases": dict(enumerate(phases, 1))}
    except (AttributeError, KeyError, TypeError):
        return fingerprint


class Difference(NamedTuple):
    """A value that differs; None where one side lacks it."""

    path: tuple[str, ...]
    saved: Any
    current: Any


def find_differences(saved: Any, current: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Yield the differences of two JSON values, in the order of the current one.

    >>> [tuple(one) for one in find_differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}})]
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
    of_members = [one for one in differences if one.path[:1] == ("datasets",) and len(one.path) > 1]
    # Other arguments read other columns, so data count only where no argument of their dataset differs.
    explained = {one.path[1] for one in of_members if "data" not in one.path[2:3]}
    members: dict[str, list[str]] = {}
    for one in differences:
        if one not in of_members:
            members.setdefault(_of_loader(one), [])
        elif len(one.path) == 2:
            members.setdefault(f"mixture: {one.path[1]!r} is {'new' if one.saved is None else 'in the state only'}", [])
        elif "data" not in one.path[2:3]:
            name, *field = one.path[1:]
            label = _MEMBER_WORDS.get(field[0], field[0])
            members.setdefault(_changed(label, one.current, one.saved), []).append(name)
        elif one.path[1] not in explained:
            words = _DATA_WORDS.get(one.path[-1], "columns")
            members.setdefault(f"data of {one.path[1]!r}, which were converted or labelled again: other {words}", [])
    count = len(current.get("datasets", ()))
    texts = [f"{text} ({', '.join(names)})" if 0 < len(names) < count else text for text, names in members.items()]
    return _join(texts)


def describe_content(saved: Any, current: Mapping[str, Any]) -> str:
    """Return what differs in the content of batches, with the new and the old value; empty if nothing does.

    Args:
        saved: ``content`` of the state, any value.
        current: Content of this loader.
    """
    if not isinstance(saved, Mapping):
        return ""
    texts = [_changed(name, value, saved[name]) for name, value in current.items() if name in saved and name != "data"]
    texts = [text for text in texts if text]
    data = saved.get("data")
    if not texts and isinstance(data, Mapping):
        # The hashes are of what these arguments read, and of datasets that both loaders have.
        names = [name for name, value in current.get("data", {}).items() if data.get(name, value) != value]
        texts = [f"data of {name!r}, which were converted or labelled again" for name in names]
    return _join(texts)


def _join(texts: list[str]) -> str:
    more = [f"and {len(texts) - _MOST} more"] if len(texts) > _MOST else []
    return "; ".join([*texts[:_MOST], *more])


def _changed(name: str, current: Any, saved: Any) -> str:
    return "" if current == saved else f"{name}: {current!r:.100} was {saved!r:.100}"


def _of_loader(one: Difference) -> str:
    """Return the text of a difference that is not a member's."""
    kind, *inner = one.path or ("fingerprint",)
    if kind == "phases" and inner:
        phase = f"phase {inner[0]} of the mixture"
        if len(inner) == 3:
            return _changed(f"weight of {inner[2]!r} in {phase}", one.current, one.saved)
        return _changed(f"end of {phase}" if inner[1:] == ["until"] else phase, one.current, one.saved)
    return _changed("mixture" if kind in ("phases", "datasets") else kind, one.current, one.saved)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically; raises ArgumentError if ``read_json`` would refuse its size."""
    text = json.dumps(content, indent=1) + "\n"
    if len(text) > _MAX_BYTES:
        raise ArgumentError(
            f"{path}: would have {len(text):,} bytes, at most {_MAX_BYTES:,}; give episodes and keep_ranges as files"
        )
    write_whole(path, text, parents=True)


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of ``loader.json``; raises StateError if it is missing or something else."""
    try:
        content = json.loads(read_whole(path, _MAX_BYTES))
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
