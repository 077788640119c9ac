"""The pairs of a mixture in a form that needs only numpy to read, for ``bench.peers.protocol.Export``."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.loader.parameters import Parameters, open_loader
from bench.peers.protocol import pixel_hash
from stream.base.errors import ArgumentError
from stream.batch.encoded import decode_frames, encoded_frames
from stream.batch.spec import Batch
from stream.format.catalog import Dataset
from stream.format.frame import encode_raw
from stream.loader.loader import Loader
from stream.loader.open_mixture import OpenMixture
from stream.loader.run_config import RunConfig, Workers
from stream.order.mixture import Member, Mixture
from stream.sample.frames import Decode


def export_pairs(parameters: Parameters, folder: Path, *, max_pairs: int) -> set[str]:
    """Write each pair of a mixture once, dataset by dataset, and return the hashes of their pixels."""
    loader, total = _open(parameters)
    if total > max_pairs:
        raise ArgumentError(
            f"mixture {parameters.mixture} has {total:,} pairs, of which each peer would make a copy; "
            "give a smaller root, or allow more with --max-samples"
        )
    data, spec = loader.data, loader.data.spec
    datasets = [
        _describe(dataset, member, loader.weights[dataset.name])
        for dataset, member in zip(data.datasets, data.members, strict=True)
    ]
    about = {"datasets": datasets, **{name: getattr(parameters, name) for name in ("root", "mixture", "split")}}
    sizes = (spec.action_span.longest, spec.action_size, spec.state_size)
    return _export(loader, range(total), folder, sizes=sizes, about=about)


def export_frames(parameters: Parameters, folder: Path, *, pairs: int | None) -> set[str]:
    """Write the frames of pairs of a mixture as one dataset without metadata; return the hashes of their pixels."""
    loader, total = _open(parameters)
    count = total if pairs is None else pairs
    if count > total:
        raise ArgumentError(f"--pairs {pairs}: {parameters.mixture} in {parameters.root} has {total:,} pairs")
    about = {"datasets": [{"name": parameters.mixture, "weight": 1.0}]}
    return _export(loader, [number * total // count for number in range(count)], folder, sizes=None, about=about)


def _open(parameters: Parameters) -> tuple[Loader, int]:
    """Return the loader of a mixture, and the number of its pairs."""
    loader = open_loader(parameters)
    if set(loader.data.spec.num_frames) != {2}:
        raise ArgumentError("the peers need pairs of frames; convert with --frames endpoints")
    return loader, sum(loader.sizes.values())


def _export(
    loader: Loader, pair_numbers: Sequence[int], folder: Path, *, sizes: tuple[int, int, int] | None, about: Any
) -> set[str]:
    """Write some pairs and return the hashes of their pixels; ``Export`` describes the files.

    Actions and states are padded to ``sizes`` (window, action, state); None leaves out all metadata.
    """
    shapes, (window, action, state) = loader.data.spec.frame_shapes, sizes or (0, 0, 0)
    hashes = set()
    with exported_records(folder) as write:
        for number, (member, batch) in enumerate(_stored_pairs(loader, pair_numbers)):
            if is_raw := "frames" in batch:
                first, last = map(encode_raw, batch["frames"][0])
            else:
                first, last = (jpeg.tobytes() for *_, jpeg in encoded_frames(batch))
            numbers = (member, int(batch["episode"][0]), int(batch["step"][0])) if sizes else (0, number, 0)
            pair: dict[str, Any] = {"first": first, "second": last}
            pair |= dict(zip(("dataset", "episode", "step"), numbers, strict=True))
            pair["action"] = _padded(batch["action"][0], (window, action)).tobytes()
            pair["state"] = _padded(batch["state"][0], (state,)).tobytes()
            pair["language"] = batch["language"][0] if sizes else ""
            write(pickle.dumps(pair), numbers)
            hashes.add(pixel_hash((batch if is_raw else decode_frames(batch, shapes))["frames"][0]))
    content = {**about, "shape": shapes["frames"], "vector": [window, action, state]}
    (folder / "about.json").write_text(json.dumps(content))
    return hashes


@contextmanager
def exported_records(folder: Path) -> Iterator[Callable[[bytes, tuple[int, int, int]], None]]:
    """Give a function that writes a record of an export, with its dataset, episode and step."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers: list[tuple[int, int, int]] = []
    ends: list[int] = []
    with (folder / "pairs.bin").open("wb") as file:

        def write(record: bytes, record_numbers: tuple[int, int, int]) -> None:
            file.write(record)
            ends.append(file.tell())
            numbers.append(record_numbers)

        yield write
    np.save(folder / "numbers.npy", np.array(numbers))
    np.save(folder / "ends.npy", np.array(ends))


def stored_bytes(dataset: Dataset) -> int:
    """Return the size of all files of a dataset."""
    return sum(file.stat().st_size for file in dataset.folder.rglob("*") if file.is_file())


def _stored_pairs(loader: Loader, pair_numbers: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """Yield the dataset of some pairs, and each pair as a batch of one row with frames as they are stored."""
    data, start = loader.data, 0
    codecs = {camera.codec for dataset in data.datasets for camera in dataset.fields.stored_cameras}
    decode: Decode = "host" if "raw" in codecs else "device"
    options = dataclasses.replace(data.sample_spec, shuffle="none")
    for number, (member, size) in enumerate(zip(data.members, data.sizes.values(), strict=True)):
        running = RunConfig(batch_size=1, workers=Workers(threads=1), decode=decode)
        alone = Loader(OpenMixture(data.root, Mixture((member,)), options), running)
        for pair_number in pair_numbers:
            if start <= pair_number < start + size:
                yield number, alone.batch_at(pair_number - start)
        start += size


def _padded(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a vector filled up with zeros to a shape, or an empty one for an empty shape."""
    padded = np.zeros(shape, np.float32)
    if padded.size:
        padded[tuple(map(slice, values.shape))] = values
    return padded


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
        "bytes": stored_bytes(dataset),
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
