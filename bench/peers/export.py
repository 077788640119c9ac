"""The pairs of a mixture in a form that needs only numpy to read, for ``bench.peers.protocol.Export``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from bench.loader.parameters import Parameters, open_loader
from bench.measure.stored_records import StoredRecords
from bench.peers.protocol import METADATA, pixel_hash
from stream.format.catalog import Catalog
from stream.frameworks.grain import PairSource
from stream.loader.loader import Loader
from stream.order.mixture import resolve_mixture
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
    spans, hashes = _write_frames(loader, np.arange(total), folder)
    # PairSource gives the pairs in the same order.
    source = PairSource(parameters.root, parameters.mixture, split=parameters.split)
    metadata = []
    for place in range(total):
        pair = source[place]
        metadata.append({key: pair[key] for key in ("dataset", *METADATA)})
    texts = sorted({pair["language"] for pair in metadata})
    places = {text: number for number, text in enumerate(texts)}
    _write_columns(
        folder,
        spans=spans,
        numbers=[[int(pair[key]) for key in ("dataset", "episode", "step")] for pair in metadata],
        action=np.stack([np.asarray(pair["action"], np.float32) for pair in metadata]),
        state=np.stack([np.asarray(pair["state"], np.float32) for pair in metadata]),
        about={
            "shape": loader.data.spec.frame_shape,
            "datasets": _describe(parameters, loader),
            "languages": texts,
            "language": [places[pair["language"]] for pair in metadata],
            "root": parameters.root,
            "mixture": parameters.mixture,
            "split": parameters.split,
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
    spans, hashes = _write_frames(loader, np.arange(count) * total // count, folder)
    _write_columns(
        folder,
        spans=spans,
        numbers=[[0, number, 0] for number in range(count)],
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


def _write_columns(
    folder: Path,
    *,
    spans: Sequence[Sequence[int]],
    numbers: Sequence[Sequence[int]],
    action: np.ndarray,
    state: np.ndarray,
    about: Mapping[str, Any],
) -> None:
    """Write everything but the frames of an export; see ``Export`` for the columns."""
    np.save(folder / "spans.npy", np.array(spans, np.int64))
    np.save(folder / "numbers.npy", np.array(numbers, np.int64))
    np.save(folder / "action.npy", action)
    np.save(folder / "state.npy", state)
    vector = [*action.shape[1:], state.shape[1]]
    (folder / "about.json").write_text(json.dumps({**about, "vector": vector}))


def _write_frames(loader: Loader, places: np.ndarray, folder: Path) -> tuple[list[tuple[int, int, int]], set[str]]:
    """Write the JPEGs of some pairs and return their spans in the file and the hashes of their pixels.

    Args:
        loader: Loader of the pairs.
        places: Ascending numbers of pairs, counted dataset by dataset in storage order.
        folder: Folder to make.
    """
    views, spans, hashes, end = loader.data.views, [], set(), 0
    folder.mkdir(parents=True)
    ends = np.cumsum(views.sizes)
    member = np.searchsorted(ends, places, side="right")
    inside = places - np.concatenate([[0], ends])[member]
    splits, records = views.locate(member, np.zeros_like(member), inside, seed=0, shuffle=False)
    pixels = np.empty((2, *loader.data.spec.frame_shape, 3), np.uint8)
    stored = StoredRecords(views.splits)
    with (folder / "frames.bin").open("wb") as file:
        for split, record in zip(splits.tolist(), records.tolist(), strict=True):
            first, last = stored.frames(split, record)
            for number, frame in enumerate((first, last)):
                file.write(frame)
                simplejpeg.decode_jpeg(frame, buffer=pixels[number])
            spans.append((end, end + len(first), end + len(first) + len(last)))
            end = spans[-1][2]
            hashes.add(pixel_hash(pixels))
    return spans, hashes


def _describe(parameters: Parameters, loader: Loader) -> list[dict[str, Any]]:
    catalog = Catalog(parameters.root)
    described = []
    for member in resolve_mixture(parameters.mixture, parameters.split, catalog).members:
        dataset = catalog.open(member.dataset)
        manifest = dataset.manifest
        described.append(
            {
                "name": dataset.name,
                "weight": loader.weights[dataset.name],
                "offset": manifest.parameters["offset"],
                "split": member.split,
                "source": "/".join(Path(manifest.source.path).parts[-2:]),
                "camera": manifest.parameters["camera"],
                "channels": manifest.parameters["channels"],
                "language": manifest.parameters["language"],
                "action": _spans(manifest.spec.get("action")),
                "state": _spans(manifest.spec.get("state")),
                "bytes": sum(file.stat().st_size for file in dataset.folder.rglob("*") if file.is_file()),
            }
        )
    return described


def _spans(parts: Sequence[Mapping[str, Any]] | None) -> list[list[Any]]:
    """Return feature, chosen places or None, and first and last place for each part of a vector."""
    spans, start = [], 0
    for part in parts or ():
        chosen = part.get("select")
        stop = start + int(part["dims"])
        spans.append([part["path"], None if chosen is None else list(map(int, chosen)), start, stop])
        start = stop
    return spans
