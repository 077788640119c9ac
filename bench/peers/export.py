"""The pairs of a mixture in a form that needs only numpy to be read, for ``bench.peers.protocol.Export``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from bench.loader.sweep import Parameters, open_loader
from bench.measure.stored_records import StoredRecords
from bench.peers.protocol import pixel_hash
from stream.format.catalog import Catalog
from stream.frameworks.grain import PairSource
from stream.loader.loader import Loader
from stream.order.mixture import resolve_mixture
from stream.storage.errors import ArgumentError


def export_pairs(parameters: Parameters, folder: Path, *, most: int) -> set[str]:
    """Write each pair of the mixture once; returns the hashes of their pixels.

    Args:
        parameters: root, mixture and split.
        folder: is made.
        most: pairs; each peer makes a copy of all.

    Raises:
        ArgumentError: there is no such mixture, it has more pairs, or they are not of two frames of one size.
        stream.storage.errors.FormatError: a file is damaged.
    """
    loader = open_loader(parameters)
    total = sum(loader.sizes.values())
    if total > most:
        raise ArgumentError(
            f"mixture {parameters.mixture} has {total:,} pairs, of which each peer would make a copy; "
            "give a smaller root, or more with --max-pairs"
        )
    if set(loader.data.spec.num_frames) != {2}:
        raise ArgumentError("the peers are given pairs; convert with --frames endpoints")
    folder.mkdir(parents=True)
    spans, hashes = _write_frames(loader, folder / "frames.bin")
    numbers, languages, actions, states = [], [], [], []
    for pair in _metadata(parameters):
        numbers.append((int(pair["dataset"]), int(pair["episode"]), int(pair["step"])))
        languages.append(pair["language"])
        actions.append(np.asarray(pair["action"], np.float32))
        states.append(np.asarray(pair["state"], np.float32))
    np.save(folder / "spans.npy", np.array(spans, np.int64))
    np.save(folder / "numbers.npy", np.array(numbers, np.int64))
    np.save(folder / "action.npy", np.stack(actions))
    np.save(folder / "state.npy", np.stack(states))
    texts = sorted(set(languages))
    place = {text: number for number, text in enumerate(texts)}
    about = {
        "shape": list(loader.data.spec.frame_shape),
        "vector": [*actions[0].shape, states[0].size],
        "datasets": _describe(parameters, loader),
        "languages": texts,
        "language": [place[text] for text in languages],
        "root": parameters.root,
        "mixture": parameters.mixture,
        "split": parameters.split,
    }
    (folder / "about.json").write_text(json.dumps(about))
    return hashes


def _write_frames(loader: Loader, path: Path) -> tuple[list[tuple[int, int, int]], set[str]]:
    """Write the JPEGs of all pairs, dataset by dataset, in storage order."""
    views, spans, hashes, end = loader.data.views, [], set(), 0
    height, width = loader.data.spec.frame_shape
    pixels = np.empty((2, height, width, 3), np.uint8)
    stored = StoredRecords(views.splits)
    with path.open("wb") as file:
        for member, size in enumerate(views.sizes.tolist()):
            zero = np.zeros(size, np.int64)
            splits, records = views.locate(zero + member, zero, np.arange(size), seed=0, shuffle=False)
            for split, record in zip(splits.tolist(), records.tolist(), strict=True):
                first, last = stored.frames(split, record)
                for number, frame in enumerate((first, last)):
                    file.write(frame)
                    simplejpeg.decode_jpeg(frame, buffer=pixels[number])
                spans.append((end, end + len(first), end + len(first) + len(last)))
                end = spans[-1][2]
                hashes.add(pixel_hash(pixels))
    return spans, hashes


def _metadata(parameters: Parameters) -> Any:
    """The pairs as the loader gives them, in the same order."""
    source = PairSource(parameters.root, parameters.mixture, split=parameters.split)
    return (source[place] for place in range(len(source)))


def _describe(parameters: Parameters, loader: Loader) -> list[dict[str, Any]]:
    catalog = Catalog(parameters.root)
    described = []
    for member in resolve_mixture(parameters.mixture, parameters.split, catalog):
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
    """Of each part of a vector: feature, the chosen places or None, and first and last place of the vector."""
    spans, start = [], 0
    for part in parts or ():
        chosen = part.get("select")
        stop = start + int(part["dims"])
        spans.append([part["path"], None if chosen is None else list(map(int, chosen)), start, stop])
        start = stop
    return spans
