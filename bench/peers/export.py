"""The pairs of a mixture in a form that needs only numpy to read, for ``bench.peers.protocol.Export``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.loader.parameters import Parameters, open_loader
from bench.peers.protocol import COLUMNS, METADATA, pixel_hash
from stream.batch.encoded import decode_frames, encoded_frames
from stream.batch.spec import Batch
from stream.format.catalog import Dataset
from stream.loader.loader import Loader
from stream.loader.mixed import MixedData
from stream.loader.running import Running
from stream.order.mixture import Member, Mixture
from stream.storage.errors import ArgumentError


def export_mixture(parameters: Parameters, folder: Path, *, most: int) -> set[str]:
    """Write each pair of a mixture once, dataset by dataset, and return the hashes of their pixels.

    Args:
        parameters: Root, mixture and split.
        folder: Folder to make.
        most: Largest number of pairs to accept, because each peer makes a copy of all.

    Raises:
        ArgumentError: The mixture does not exist, has more pairs, or no pairs of two frames of one size.
        stream.storage.errors.FormatError: A file is damaged.
    """
    loader, total = _open(parameters)
    if total > most:
        raise ArgumentError(
            f"mixture {parameters.mixture} has {total:,} pairs, of which each peer would make a copy; "
            "give a smaller root, or more with --max-pairs"
        )
    spans, hashes, pairs = _write_frames(loader, range(total), folder)
    data, spec = loader.data, loader.data.spec
    texts = sorted({pair["language"] for pair in pairs})
    _write_columns(
        folder,
        spans=spans,
        numbers=np.array([[pair[key] for key in ("dataset", "episode", "step")] for pair in pairs]),
        action=_padded([pair["action"] for pair in pairs], (spec.window, spec.action_size)),
        state=_padded([pair["state"] for pair in pairs], (spec.state_size,)),
        about={
            "shape": spec.frame_shape,
            "datasets": [
                _describe(dataset, member, loader.weights[dataset.name])
                for dataset, member in zip(data.datasets, data.members, strict=True)
            ],
            "languages": texts,
            "language": [texts.index(pair["language"]) for pair in pairs],
            **{name: getattr(parameters, name) for name in ("root", "mixture", "split")},
        },
    )
    return hashes


def export_frames(parameters: Parameters, folder: Path, *, pairs: int | None) -> set[str]:
    """Write the frames of pairs of a mixture as one dataset without metadata; return the hashes of their pixels.

    Args:
        parameters: Root, mixture and split.
        folder: Folder to make.
        pairs: Number of pairs, spread over the mixture; None for all.

    Raises:
        ArgumentError: The mixture does not exist, has fewer pairs, or no pairs of two frames of one size.
        stream.storage.errors.FormatError: A file is damaged.
    """
    loader, total = _open(parameters)
    count = total if pairs is None else pairs
    if count > total:
        raise ArgumentError(f"--pairs {pairs}: {parameters.mixture} in {parameters.root} has {total:,} pairs")
    spans, hashes, _ = _write_frames(loader, [number * total // count for number in range(count)], folder)
    _write_columns(
        folder,
        spans=spans,
        numbers=np.arange(count)[:, None] * [0, 1, 0],
        action=np.zeros((count, 0, 0), np.float32),
        state=np.zeros((count, 0), np.float32),
        about={
            "shape": loader.data.spec.frame_shape,
            "datasets": [{"name": parameters.mixture, "weight": 1.0}],
            "languages": [""],
            "language": [0] * count,
        },
    )
    return hashes


def _open(parameters: Parameters) -> tuple[Loader, int]:
    """Return the loader of a mixture, and the number of its pairs."""
    loader = open_loader(parameters)
    if set(loader.data.spec.num_frames) != {2}:
        raise ArgumentError("the peers need pairs of frames; convert with --frames endpoints")
    return loader, sum(loader.sizes.values())


def _write_frames(
    loader: Loader, places: Sequence[int], folder: Path
) -> tuple[np.ndarray, set[str], list[dict[str, Any]]]:
    """Write the JPEGs of some pairs; return their spans in the file, the hashes of their pixels, and their metadata.

    Args:
        loader: Loader of the pairs.
        places: Ascending numbers of pairs, counted dataset by dataset in storage order.
        folder: Folder to make.
    """
    folder.mkdir(parents=True)
    spans, hashes, pairs, end = [], set(), [], 0
    with (folder / "frames.bin").open("wb") as file:
        for member, batch in _stored_pairs(loader, places):
            first, last = (jpeg.tobytes() for _, _, jpeg in encoded_frames(batch))
            file.write(first + last)
            spans.append((end, end + len(first), end + len(first) + len(last)))
            end = spans[-1][2]
            hashes.add(pixel_hash(decode_frames(batch, loader.data.spec.frame_shape)[0]))
            pairs.append({**{key: batch[key][0] for key in METADATA}, "dataset": member})
    return np.array(spans), hashes, pairs


def _stored_pairs(loader: Loader, places: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """Yield the dataset of some pairs, and each pair as a batch of one row with encoded frames."""
    data, start = loader.data, 0
    options = dataclasses.replace(data.options, shuffle="none", metadata="full")
    for number, (member, size) in enumerate(zip(data.members, data.sizes.values(), strict=True)):
        running = Running(batch_size=1, threads=1, decode="device")
        alone = Loader(MixedData(data.root, Mixture((member,)), options), running)
        for place in places:
            if start <= place < start + size:
                yield number, alone.batch_at(place - start)
        start += size


def _padded(vectors: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Return vectors of several datasets, each filled up with zeros to the same shape."""
    padded = np.zeros((len(vectors), *shape), np.float32)
    for row, vector in zip(padded, vectors, strict=True):
        row[tuple(map(slice, vector.shape))] = vector
    return padded


def _write_columns(folder: Path, *, about: Mapping[str, Any], **columns: np.ndarray) -> None:
    """Write everything but the frames of an export; see ``Export`` for the columns."""
    for name in COLUMNS:
        np.save(folder / f"{name}.npy", columns[name])
    vector = [*columns["action"].shape[1:], columns["state"].shape[1]]
    (folder / "about.json").write_text(json.dumps({**about, "vector": vector}))


def _describe(dataset: Dataset, member: Member, weight: float) -> dict[str, Any]:
    manifest = dataset.manifest
    return {
        "name": dataset.name,
        "weight": weight,
        "split": member.split,
        "source": "/".join(Path(manifest.source.path).parts[-2:]),
        **{name: manifest.parameters[name] for name in ("offset", "camera", "channels", "language")},
        "action": _spans(manifest.spec.get("action")),
        "state": _spans(manifest.spec.get("state")),
        "bytes": sum(file.stat().st_size for file in dataset.folder.rglob("*") if file.is_file()),
    }


def _spans(parts: Sequence[Mapping[str, Any]] | None) -> list[list[Any]]:
    """Return feature, chosen places or None, and first and last place for each part of a vector."""
    spans, start = [], 0
    for part in parts or ():
        chosen = part.get("select")
        stop = start + int(part["dims"])
        spans.append([part["path"], None if chosen is None else list(map(int, chosen)), start, stop])
        start = stop
    return spans
