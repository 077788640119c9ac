"""``loader.json``, beside a checkpoint: the file from which a run's loader is opened again."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from stream.base.errors import ArgumentError, StateError
from stream.base.plain_values import canonical_choice
from stream.loader.open_mixture import OpenMixture
from stream.loader.run_config import RunConfig
from stream.loader.sample_spec import SampleSpec
from stream.loader.state import STATE_VERSION, describe_content, describe_order, read_json, write_json
from stream.order.filters import canonical_filters
from stream.order.mixture import Member, Mixture
from stream.statistics.normalize import Normalize, bind_transforms
from stream.storage.remote import CachedRoot, cached_root, is_remote

_log = logging.getLogger("stream")
_KEPT = ("batch_size", "on_error", "num_steps", "decode")


@dataclass(frozen=True)
class SavedTransforms:
    """The transforms of a ``loader.json``, in order: normalisations, and texts of those that are code."""

    entries: tuple[Normalize | str, ...]

    @property
    def code(self) -> list[str]:
        """Texts of the transforms that the file does not hold."""
        return [entry for entry in self.entries if isinstance(entry, str)]

    def restore(self, transforms: Sequence[Any] = ()) -> list[Any]:
        """Return transforms with the file's normalisations at their places among them.

        Args:
            transforms: Transforms that are code; if they normalise already, they stay as they are.
        """
        if any(isinstance(each, Normalize) for each in transforms):
            return list(transforms)
        code = iter(transforms)
        restored: list[Any] = []
        for entry in self.entries:
            restored.extend([entry] if isinstance(entry, Normalize) else islice(code, 1))
        return [*restored, *code]


def save_loader(path: str | Path, data: OpenMixture, running: RunConfig) -> None:
    """Write ``loader.json`` atomically.

    Raises:
        ArgumentError: ``path`` is not the name of a file.
        OSError: The file cannot be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"path={path!r:.100}; expected the name of a file")
    if os.path.isdir(path):
        raise ArgumentError(f"{path}: is a folder; give a file's name, such as {os.path.join(path, 'loader.json')}")
    options = data.options
    members = [
        {
            "name": dataset.name,
            "dataset": f"{member.dataset.partition(':')[0]}:{dataset.version}",
            "split": member.split,
            "weights": weights,
            "root": member.root and (member.root if is_remote(member.root) else os.path.abspath(member.root)),
            "filters": canonical_filters(member.filters),
            **{what: _own(what, getattr(member, what)) for what in ("episodes", "keep_ranges")},
        }
        for member, dataset, weights in zip(data.members, data.datasets, data.relative_weights, strict=True)
    ]
    content = {
        "format": "stream-loader",
        "version": STATE_VERSION,
        "root": str(data.root.resolve()),
        **{name: getattr(running, name) for name in _KEPT},
        **dict(zip(("rank", "world_size"), running.ranks, strict=True)),
        "members": members,
        "until": data.mixture.until,
        "options": {name: getattr(options, name) for name in SampleSpec.__dataclass_fields__},
        "fingerprint": data.fingerprint(),
        "data": data.content()["data"],
        # A subclass of Normalize is code.
        "transforms": [each.to_json() if type(each) is Normalize else repr(each) for each in running.transforms],
    }
    write_json(Path(path), content)


def read_saved(
    path: str | Path,
    *,
    root: str | Path | CachedRoot | None = None,
    cache: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[OpenMixture, RunConfig, SavedTransforms]:
    """Open the data and settings of a ``loader.json``, with its normalisation; also return its transforms.

    A warning says which data that batches read are no longer those of the run.

    Args:
        path: File.
        root: Place of the converted data, if they were moved; members with a root of their own keep it.
        cache: Cache of a remote root, as for ``make_loader``.
        overrides: Fields of ``RunConfig`` that replace those of the file.

    Raises:
        StateError: The file is not a loader.json, or the data differ from those of the run.
        ArgumentError: An override or the root is wrong.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"path={path!r:.100}; expected the name of a loader.json")
    content = read_json(Path(path))
    try:
        mixture = Mixture(tuple(_member(each) for each in content["members"]), tuple(map(int, content["until"])))
        options = SampleSpec(**content["options"])
        running = {name: content[name] for name in (*_KEPT, "rank", "world_size")}
        where: Any = root or _text(content["root"])
        fingerprint = content["fingerprint"]
        data_hashes = dict(content["data"])
        saved = SavedTransforms(
            tuple(
                Normalize.from_json(entry, context=path) if isinstance(entry, Mapping) else _text(entry)
                for entry in content["transforms"]
            )
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise StateError(f"{path}: field missing or of the wrong type ({error!r:.100})") from None
    running |= overrides or {}
    chosen = RunConfig(**running)
    data = OpenMixture(cached_root(where, cache), mixture, options, batch_size=chosen.batch_size)
    if difference := describe_order(fingerprint, data.fingerprint()):
        raise StateError(f"{path}: the data below {where} are not those of the run: {difference}")
    if difference := describe_content({"data": data_hashes}, data.content()):
        _log.warning("%s: batches are not those of the run: %s", path, difference)
    transforms = bind_transforms(saved.restore(chosen.transforms), data)
    return data, replace(chosen, transforms=transforms), saved


def _own(what: str, value: Any) -> Any:
    """Return a choice of one member in JSON form."""
    return None if value is None else canonical_choice(what, {"": value})[""]


def _member(content: Any) -> Member:
    weights = tuple(map(float, content["weights"]))
    root = content["root"]
    choices = {what: content[what] for what in ("filters", "episodes", "keep_ranges")}
    return Member(
        _text(content["dataset"]),
        _text(content["split"]),
        weights,
        name=_text(content["name"]),
        root=None if root is None else _text(root),
        **choices,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"{value!r:.60} is not a text")
    return value
