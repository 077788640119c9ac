"""The manifest of a dataset against itself, the packaged registry, and the list of what was left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from convert.errors import ConvertError
from convert.journal.status import QuarantineEntry
from convert.registry.dataset import changed_fields
from convert.registry.registry import load_registry
from convert.shard.pairs import frame_offsets
from convert.verify.files import is_unchanged, open_regular
from convert.verify.report import Findings
from stream.format.manifest import Manifest, ShardEntry
from stream.format.names import QUARANTINE_NAME, split_of

_SHARD = re.compile(r"(?P<index>\d{5,})-of-(?P<count>\d{5,})")
_MAX_OFFSET = 10_000
_MAX_LINE = 1_000_000
_UNLISTED = ("pair_of_corrupt_frame", "not_chosen")
"""The one reason that is counted and not listed: the list has the corrupt frame once, not each of its pairs."""


class _Image(BaseModel):
    """Counts of frames in field ``image`` of a manifest."""

    model_config = ConfigDict(strict=True)
    sizes: dict[str, int]
    passed: int
    transcoded: int


def contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield a sentence about each contradiction in a manifest that ``read_manifest`` does not find."""
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    yield from _differing_counts("left out as", manifest.left_out, (shard.left_out for shard in shards))
    try:
        image = _Image.model_validate(manifest.image)
    except ValidationError:
        yield f"field image is {manifest.image!r:.200}, expected sizes, passed and transcoded"
    else:
        yield from _differing_counts("frames of", image.sizes, (shard.sizes for shard in shards))
        by_size, passed = sum(image.sizes.values()), sum(shard.passed for shard in shards)
        if image.passed != passed:
            yield f"says {image.passed:,} frames passed through, its shards {passed:,}"
        if by_size != image.passed + image.transcoded:
            yield (
                f"counts {by_size:,} frames by size, {image.passed + image.transcoded:,} passed through or transcoded"
            )
    if manifest.layout == "frames":
        yield from _wrong_cameras(manifest, shards)
    for name, split in manifest.splits.items():
        yield from _strange_names(name, split.shards)
    if set(manifest.statistics) != set(manifest.splits):
        found, expected = (", ".join(sorted(names)) or "no split" for names in (manifest.statistics, manifest.splits))
        yield f"has statistics of {found}, expected of {expected}"
    if pair_offsets(manifest) == (None, None):
        yield "field parameters has no offset, frames and frame_offsets of a pair that agree"


def _wrong_cameras(manifest: Manifest, shards: Sequence[ShardEntry]) -> Iterator[str]:
    names = manifest.parameters.get("cameras")
    counted = manifest.image.get("cameras")
    if not isinstance(names, list) or not isinstance(counted, dict) or set(names) != set(counted):
        yield f"field image.cameras has {list(counted or ())!r:.100}, the parameter cameras is {names!r:.100}"
        return
    for shard in shards:
        if set(shard.camera_sizes) != set(names):
            yield f"shard {shard.name} counts frames of {list(shard.camera_sizes)!r:.100}, expected {names!r:.100}"
            return
    for name in names:
        yield from _differing_counts(f"frames of {name} of", counted[name], (s.camera_sizes[name] for s in shards))


def pair_offsets(manifest: Manifest) -> tuple[int | None, tuple[int, ...] | None]:
    """Return the offset of all records and the offsets of their frames; (None, None) if the manifest is unclear."""
    offset, frames = manifest.parameters.get("offset"), manifest.parameters.get("frames")
    if manifest.layout == "frames":
        return 0, (0,)
    if not isinstance(offset, int) or not isinstance(frames, str) or not 1 <= offset <= _MAX_OFFSET:
        return None, None
    try:
        offsets = frame_offsets(frames, offset)
    except ConvertError:
        return None, None
    return (offset, offsets) if manifest.parameters.get("frame_offsets") == list(offsets) else (None, None)


def changed_entry(manifest: Manifest) -> list[str]:
    """Return the fields of the registry entry in a manifest that differ from the packaged registry.

    A dataset or version that the packaged registry does not have differs in nothing.
    """
    spec = load_registry().datasets.get(manifest.dataset)
    return changed_fields(manifest.spec, spec) if spec is not None and spec.version == manifest.version else []


def reindex_hint(folder: Path, keys: Sequence[str]) -> str:
    """Return one sentence about the remedy for ``changed_entry``; ``folder`` is the version folder."""
    folder = folder.absolute()
    return (
        f"was converted with another registry entry than the packaged one ({', '.join(keys)} differ); "
        f"`python -m convert.reindex {folder.parent.parent} --datasets {folder.parent.name}` brings derived columns "
        "and statistics up to date"
    )


def check_quarantine(folder: Path, manifest: Manifest, *, journal: bool, findings: Findings) -> None:
    """Compare the list of what was left out with the counts of each shard.

    Args:
        folder: Version folder.
        manifest: Manifest of the dataset.
        journal: Whether a split is being added, which the manifest does not have yet.
        findings: Findings to add to.
    """
    shards = {shard.name: shard for split in manifest.splits.values() for shard in split.shards}
    counted = {
        (shard.name, reason): count
        for shard in shards.values()
        for reason, count in shard.left_out.items()
        if reason not in _UNLISTED
    }
    listed: Counter[tuple[str, str]] = Counter()
    path, report = folder / QUARANTINE_NAME, partial(findings.add, QUARANTINE_NAME)
    if not path.exists():
        if counted:
            report(f"is not there, the manifest left out {dict(manifest.left_out)}")
        return
    file = manifest.quarantine if not journal else None
    changed = file and not is_unchanged(path, file, name=QUARANTINE_NAME, findings=findings)
    if changed and not path.is_file():
        return
    try:
        with open_regular(path) as opened:
            lines = iter(partial(opened.readline, _MAX_LINE), b"")
            for number, line in enumerate(lines, start=1):
                try:
                    entry = QuarantineEntry.model_validate_json(line)
                except ValidationError as error:
                    report(f"line {number}: {error.errors()[0]['msg']} (found {line[:80]!r})")
                    continue
                shard = shards.get(entry.shard)
                if shard is not None and shard.source_file == entry.source_file:
                    listed[entry.shard, entry.reason] += 1
                elif shard is not None or not journal or split_of(entry.shard) in manifest.splits:
                    what = f"shard {entry.shard!r:.100} of source file {entry.source_file!r:.100}"
                    report(f"line {number}: {what}, which the manifest does not have")
    except OSError as error:
        report(f"cannot be read: {error.strerror or error}")
        return
    for key in sorted({*listed, *counted}):
        if listed[key] != counted.get(key, 0):
            name, reason = key
            report(f"lists {listed[key]:,} of {reason} for {name}, the manifest left out {counted.get(key, 0):,} there")


def _differing_counts(what: str, said: Mapping[str, int], shards: Iterable[Mapping[str, int]]) -> Iterator[str]:
    """Compare counts of a dataset, by key, with the sums over its shards."""
    total: Counter[str] = Counter()
    for counts in shards:
        total.update(counts)
    for key in sorted({*said, *total}):
        if said.get(key, 0) != total[key]:
            yield f"says {said.get(key, 0):,} {what} {key}, its shards add up to {total[key]:,}"


def _strange_names(split: str, shards: Sequence[ShardEntry]) -> Iterator[str]:
    """Yield a sentence about each shard whose name does not follow the name before."""
    last, count = -1, None
    for shard in shards:
        match = _SHARD.fullmatch(shard.name.removeprefix(f"{split}-"))
        if match is None:
            yield f"split {split} lists a shard {shard.name!r}, expected {split}-00000-of-00001"
            continue
        index, count = int(match["index"]), count or match["count"]
        if match["count"] != count or not last < index < int(count):
            yield f"split {split} lists {shard.name!r} after number {last} of {count}"
        last = index
