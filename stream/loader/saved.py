"""``loader.json``, next to a checkpoint: the file from which a run's loader is opened again."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from stream.base.errors import ArgumentError, StateError
from stream.format.catalog import Dataset
from stream.loader.open_mixture import OpenMixture
from stream.loader.run_config import RunConfig
from stream.loader.sample_spec import SampleSpec
from stream.loader.state import STATE_VERSION, describe_content, describe_order, read_json, write_json
from stream.order.mixture import Member, Mixture
from stream.sample.frames import Frames
from stream.sample.select import Select
from stream.sample.vector import Vector
from stream.statistics.binding import bind_transforms
from stream.statistics.deferred import DeferredNormalize
from stream.statistics.normalize import Normalize
from stream.storage.cache_folder import CacheLike, cached_root
from stream.storage.remote import CachedRoot, is_remote

_log = logging.getLogger("stream")
_OBJECTS: dict[str, Any] = {"select": Select, "frames": Frames, "action": Vector, "state": Vector}
"""Objects of a member, by the key of a file."""
_SAVED_SETTINGS = ("batch_size", "on_error", "num_steps", "decode")


@dataclass(frozen=True)
class SavedTransforms:
    """The transforms of a ``loader.json``, in order: normalisations, and the texts of code transforms."""

    entries: tuple[Normalize | str, ...]

    @property
    def code(self) -> list[str]:
        """Texts of the transforms that the file does not hold."""
        return [entry for entry in self.entries if isinstance(entry, str)]

    def restore(self, transforms: Sequence[Any] = ()) -> list[Any]:
        """Return transforms with the file's normalisations at their positions.

        Args:
            transforms: Transforms that are code; if they normalise already, they stay as they are. Where a trainer's
                sample normalises, the file's numbers replace it.
        """
        if any(isinstance(transform, Normalize) for transform in transforms):
            return list(transforms)
        normalizers = [entry for entry in self.entries if isinstance(entry, Normalize)]
        is_deferred = [isinstance(transform, DeferredNormalize) for transform in transforms]
        if normalizers and sum(is_deferred) == len(normalizers):
            numbers = iter(normalizers)
            return [next(numbers) if deferred else item for deferred, item in zip(is_deferred, transforms, strict=True)]
        code_transforms = iter(
            [item for item in transforms if not (normalizers and isinstance(item, DeferredNormalize))]
        )
        restored: list[Any] = []
        for entry in self.entries:
            restored.extend([entry] if isinstance(entry, Normalize) else islice(code_transforms, 1))
        return [*restored, *code_transforms]


def save_loader(path: str | Path, mixture: OpenMixture, run_config: RunConfig) -> None:
    """Write ``loader.json`` atomically.

    Raises:
        ArgumentError: ``path`` is not the name of a file.
        OSError: The file cannot be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"path={path!r:.100}; expected the name of a file")
    if os.path.isdir(path):
        raise ArgumentError(f"{path}: is a folder; give a file's name, such as {os.path.join(path, 'loader.json')}")

    members = zip(mixture.members, mixture.datasets, mixture.relative_weights, strict=True)
    content = {
        "format": "stream-loader",
        "version": STATE_VERSION,
        "root": str(mixture.root.resolve()),
        **{name: getattr(run_config, name) for name in _SAVED_SETTINGS},
        **dict(zip(("rank", "world_size"), run_config.ranks, strict=True)),
        "members": [_encode_member(*member) for member in members],
        "until": mixture.mixture.until,
        "sample": mixture.sample_spec.to_json(),
        "fingerprint": mixture.fingerprint(),
        "data": mixture.content()["data"],
        # A subclass of Normalize is code.
        "transforms": [
            transform.to_json() if type(transform) is Normalize else repr(transform)
            for transform in run_config.transforms
        ],
    }
    write_json(Path(path), content)


def read_saved(
    path: str | Path,
    *,
    root: str | Path | CachedRoot | None = None,
    cache: CacheLike = None,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[OpenMixture, RunConfig, SavedTransforms]:
    """Open the mixture and the settings of a ``loader.json``, with its normalisation; also return its transforms.

    A warning names the data that batches read and that have changed since the run.

    Args:
        path: File.
        root: Location of the converted data, if they were moved; members with their own root keep it.
        cache: Cache of a remote root, as for ``make_loader``.
        overrides: Fields of ``RunConfig`` that replace the file's.

    Raises:
        StateError: The file is not a loader.json, or the data differ from those of the run.
        ArgumentError: An override or the root is wrong.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"path={path!r:.100}; expected the name of a loader.json")
    content = read_json(Path(path))
    try:
        saved_mixture = Mixture(tuple(map(_decode_member, content["members"])), tuple(map(int, content["until"])))
        spec = SampleSpec.of("sample", content["sample"])
        settings = {setting: content[setting] for setting in (*_SAVED_SETTINGS, "rank", "world_size")}
        data_root: Any = root or _text(content["root"])
        fingerprint = content["fingerprint"]
        data_hashes = dict(content["data"])
        saved_transforms = SavedTransforms(tuple(_decode_transform(entry, path) for entry in content["transforms"]))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise StateError(f"{path}: field missing or of the wrong type ({error!r:.100})") from None
    settings |= overrides or {}
    run_config = RunConfig(**settings)
    mixture = OpenMixture(cached_root(data_root, cache), saved_mixture, spec, batch_size=run_config.batch_size)
    if difference := describe_order(fingerprint, mixture.fingerprint()):
        raise StateError(f"{path}: the data below {data_root} are not those of the run: {difference}")
    if difference := describe_content({"data": data_hashes}, mixture.content()):
        _log.warning("%s: batches are not those of the run: %s", path, difference)
    transforms = bind_transforms(saved_transforms.restore(run_config.transforms), mixture)
    return mixture, replace(run_config, transforms=transforms), saved_transforms


def _encode_member(member: Member, dataset: Dataset, weights: Sequence[float]) -> dict[str, Any]:
    root = member.root and (member.root if is_remote(member.root) else os.path.abspath(member.root))
    if root and dataset.remote is not None:
        # With the commit that a branch of the Hub named when the member was opened.
        root = dataset.remote.url.rsplit("/", 2)[0]
    return {
        "name": dataset.name,
        "dataset": f"{member.dataset.partition(':')[0]}:{dataset.version}",
        "split": member.split,
        "weights": weights,
        "root": root,
        **{name: value.to_json() for name in _OBJECTS if (value := getattr(member, name)) is not None},
    }


def _decode_member(content: Any) -> Member:
    return Member(
        _text(content["dataset"]),
        _text(content["split"]),
        tuple(map(float, content["weights"])),
        name=_text(content["name"]),
        root=None if content["root"] is None else _text(content["root"]),
        **{name: kind.of(name, content[name]) for name, kind in _OBJECTS.items() if name in content},
    )


def _decode_transform(content: Any, path: str | Path) -> Normalize | str:
    return Normalize.from_json(content, context=path) if isinstance(content, Mapping) else _text(content)


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"{value!r:.60} is not a text")
    return value
