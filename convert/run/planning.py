"""Plans of all conversions of a request, made before anything is written."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from convert.errors import UsageError
from convert.plan import Conversion, ConvertConfig, plan_conversion
from convert.registry.registry import Selected, load_registry
from convert.run.config import read_episode_lists
from convert.run.request import ConvertRequest
from convert.shard.pairs import is_seconds
from convert.source.kinds import find_source
from convert.source.protocol import Source
from convert.source.rlds.dataset import find_dataset
from stream.base.errors import closest
from stream.storage.remote import join

OVERWRITE = ".overwrite"
"""Folder of the output in which ``--overwrite`` converts; readers of a root pass over hidden folders."""


def select_datasets(request: ConvertRequest) -> tuple[list[Selected], dict[str, Source]]:
    """Return the datasets, and by name the sources of datasets that describe themselves."""
    sources: dict[str, Source] = {}

    def describe(dataset_name: str, source_name: str, layout: Mapping[str, Any]) -> Mapping[str, Any]:
        sources[dataset_name] = find_source(source_name, request.source, layout)
        return sources[dataset_name].entry

    return load_registry(config=request.config).resolve(request.datasets, describe), sources


def plan_conversions(request: ConvertRequest, config: ConvertConfig) -> list[Conversion]:
    """Return the plan of each dataset, and print its warnings; raises UsageError for one that cannot be converted."""
    selection, described = select_datasets(request)
    if not request.source and any(selected.spec.name not in described for selected in selection):
        raise UsageError("--source: give the folder with the datasets below it")
    check_rates(selection, config.offset)
    episode_lists = read_episode_lists(request.episodes, [selected.spec.name for selected in selection])
    config = replace(config, episode_lists=episode_lists)
    if config.layout == "frames":
        _check_cameras(selection, config)
    conversions = []
    for selected in selection:
        spec = selected.spec
        source = described.get(spec.name) or find_dataset(request.source, spec.tfds_name, spec.version)
        target = join(request.output, spec.name, spec.version)
        temporary = join(request.output, OVERWRITE, spec.name, spec.version)
        output = temporary if request.overwrite else target
        conversion = plan_conversion(selected, source, config, output_folder=output, target=target)
        _check_apart(conversion)
        for warning in conversion.warnings:
            print(f"warning: {spec.name}: {warning}", file=sys.stderr)
        conversions.append(conversion)
    return conversions


def check_rates(selection: Sequence[Selected], offset: str | None) -> None:
    """Raise UsageError if an offset for all datasets is in seconds and some have no fixed rate; names all of them."""
    without_rate = [selected.spec.name for selected in selection if selected.spec.control_frequency is None]
    if offset is not None and is_seconds(offset) and without_rate:
        dataset_names = ",".join(without_rate)
        raise UsageError(
            f"--offset {offset} is in seconds, but these have no fixed rate: {dataset_names}; give --offset in steps, "
            f"or convert them apart (--datasets {dataset_names} --offset STEPS) and the others by their names"
        )


def _check_cameras(selection: Sequence[Selected], config: ConvertConfig) -> None:
    """Raise UsageError for the first camera that no dataset has."""
    cameras = [camera.keys(name) for selected in selection for name, camera in selected.spec.cameras.items()]
    available_keys = set(itertools.chain(*cameras))
    requested_by_option = {"cameras": config.cameras, "image-size": config.image_sizes, "codec": config.codecs}
    for option_name, requested_keys in requested_by_option.items():
        for key in requested_keys:
            if key not in available_keys:
                hint = closest(key, available_keys, noun="cameras")
                raise UsageError(f"--{option_name}: no dataset has {key!r}; {hint}")


def _check_apart(conversion: Conversion) -> None:
    """Raise UsageError if files of the source are where the conversion is written: ``--overwrite`` removes them."""
    # Paths in one bucket compare as well as those of folders.
    target = os.path.realpath(conversion.target)
    for folder in {os.path.dirname(job.shard.path) for job in conversion.jobs}:
        if f"{os.path.realpath(folder)}/".startswith(f"{target}/"):
            raise UsageError(
                f"{conversion.name}: its source is {folder}, and would be written over; give another --output"
            )
