"""States of iterators: small JSON, made, checked and compared with the order of samples when it is set again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stream.storage.arguments import check_whole
from stream.storage.errors import ArgumentError, StateError
from stream.storage.files import FileTooLarge, read_whole, write_whole

STATE_VERSION = 1
_MAX_BYTES = 1 << 30
"""Size limit of ``loader.json``; keep ranges of a million episodes take 200 MB."""


def make_state(step: int, fingerprint: Mapping[str, Any], *, random_ranks: int | None = None) -> dict[str, Any]:
    """Return the state of an iterator.

    Args:
        step: Step of the next batch.
        fingerprint: Everything that defines the order of samples (``Loader.fingerprint``).
        random_ranks: Number of ranks, if a transform draws random numbers by rank (``Running.random_ranks``).
    """
    state = {"version": STATE_VERSION, "step": check_whole("step", step, least=0), "fingerprint": dict(fingerprint)}
    return state if random_ranks is None else {**state, "random_ranks": random_ranks}


def read_state(state: Any, fingerprint: Mapping[str, Any], *, random_ranks: int | None = None) -> int:
    """Return the step of a state.

    Args:
        state: Any value.
        fingerprint: Fingerprint of this loader.
        random_ranks: This loader's ``Running.random_ranks``.

    Raises:
        StateError: The value is not a state, or belongs to another order; names the first field that differs, and both
            values.
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
    difference = first_difference(_up_to(state["fingerprint"], step), _up_to(fingerprint, step))
    if difference:
        raise StateError(
            f"the state belongs to another order of samples: {difference}. Build the loader as it was then, or begin "
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
        return {**rest, "phases": dict(enumerate(phases)), "datasets": datasets}
    except (AttributeError, KeyError, TypeError):
        return fingerprint


def first_difference(saved: Any, here: Any, path: str = "") -> str:
    """Return the first difference of two JSON values, with its path and both values; empty if they are equal."""
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        for key in [*here, *(key for key in saved if key not in here)]:
            inner = f"{path}.{key}" if path else str(key)
            if key not in saved:
                return f"{inner} is here but not in the state"
            if key not in here:
                return f"{inner} is in the state but not here"
            difference = first_difference(saved[key], here[key], inner)
            if difference:
                return difference
        return ""
    return "" if saved == here else f"{path} is {saved!r:.80} in the state and {here!r:.80} here"


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
    except FileTooLarge as error:
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
