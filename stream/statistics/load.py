"""Normalisation from a file: our own, or that of a trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from stream.base.errors import ArgumentError
from stream.statistics.files import read_json
from stream.statistics.methods import METHODS
from stream.statistics.normalize import Normalize, data_of
from stream.statistics.trainer_files import import_file

Format = Literal["stream", "openpi_pi0", "openpi_pi05", "openvla", "octo"]


def load_normalize(path: str | Path, data: Any = None, *, format: Format | str = "stream") -> Normalize:
    """Return the normalisation of a file.

    Args:
        path: File that ``Normalize.save`` wrote; or openpi's ``norm_stats.json``, or ``dataset_statistics.json`` of
            OpenVLA or Octo. These files do not name their data, so only the count of dimensions is compared.
        data: Loader of the same data, or its ``data``. It may have fewer datasets. Without one, ``normalize`` and
            ``denormalize`` of our own files work, with only numpy.
        format: Kind of the file, which fixes method, clipping and the dimensions that keep their values.
            ``norm_stats.json`` does not name its model: take ``openpi_pi0``, or ``openpi_pi05``, also for pi0-FAST.

    Raises:
        ArgumentError: The file is not one, or belongs to other data; the message names the difference.
    """
    if format == "stream":
        saved = Normalize.from_json(read_json(path), context=path)
        return saved if data is None else saved.bind(data, context=f"{path}: ")
    if format not in get_args(Format):
        hint = ", as norm_stats.json does not name its model" if format == "openpi" else ""
        raise ArgumentError(f"format={format!r:.100}; expected one of {', '.join(get_args(Format))}{hint}")
    if data is None:
        raise ArgumentError(f"format={format!r}: the file has no names of dimensions; give a loader")
    spec, method = data_of(data).spec, METHODS[format]
    names: Any = {}
    for vector_key in spec.vector_names:
        vectors = zip(spec.datasets, spec.vectors(vector_key), strict=True)
        names[vector_key] = {dataset_name: vector.names for dataset_name, vector in vectors if vector.size}
    statistics = import_file(path, names, method=format)
    for by_dataset in statistics.values():
        for dataset_name, numbers in by_dataset.items():
            mask = method.mask(numbers, kept_dims=~numbers.mask, flag_dims=~numbers.mask)
            by_dataset[dataset_name] = replace(numbers, mask=mask)
    settings = {
        "method": format,
        "per": "dataset",
        "over": "dataset",
        "split": "",
        "clip": method.clip,
        "tails": "real",
    }
    normalize = Normalize.__new__(Normalize)
    normalize._set(statistics, keys=tuple(statistics), **settings)
    normalize._convert(spec)
    return normalize.bind(data, context=f"{path}: ")
