"""The parameters of a measured point, and the loader that they describe."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from bench.measure.options import number, one_of, option
from stream.base.arguments import whole_number
from stream.base.errors import ArgumentError, closest
from stream.format.catalog import Catalog
from stream.loader.loader import Loader
from stream.loader.open_mixture import OpenMixture
from stream.loader.run_config import RunConfig, Workers
from stream.loader.sample_spec import SampleSpec
from stream.order.mixture import Member, Mixture, resolve_mixture
from stream.sample.frames import Decode, Edges, Frames
from stream.sample.vector import SPACES, Vector
from stream.statistics.normalize import Normalize


def _weights_of(option_text: str) -> dict[str, float]:
    parts = [] if option_text == "none" else [part.rpartition(":") for part in option_text.split("+")]
    return {dataset_name: float(value) for dataset_name, _, value in parts}


def _weights(option_text: str) -> str:
    try:
        if all(dataset_name and 0 <= value < 1e9 for dataset_name, value in _weights_of(option_text).items()):
            return option_text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"found {option_text!r}, expected name:weight, several with + between, or none")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of a measured point."""

    root: str = option("build/demo/oxe", str, "converted root, for example that of `make demo`")
    mixture: str = option("oxe29", str, "name of a mixture or dataset, or a YAML file")
    datasets: int | None = option(
        None, whole_number(1), "use only the first N members of the mixture, with equal weights"
    )
    weight: str = option("none", _weights, "other weights of members: name:weight, several with + between")
    split: str = option("train", str, "role of the mixture, or split expression of a dataset")
    batch_size: int = option(64, whole_number(1), "rows of a batch")
    num_workers: int = option(2, whole_number(0), "worker processes; 0 makes batches in threads")
    threads: int | None = option(None, whole_number(1), "threads of a worker, or of the trainer without workers")
    prefetch: int = option(2, whole_number(1), "batches that are ready or in progress while the trainer works on one")
    cameras: str = option("primary", str, "cameras, with + between")
    frames: str = option("none", str, "frames of a sample, with + between (-1+0, 0+offset); none: those of a pair")
    edges: Edges = option("drop", one_of(get_args(Edges)), "frames beyond an episode: drop or repeat")
    action_steps: int | None = option(None, whole_number(1), "steps of the action windows")
    space: str = option("none", one_of(("none", *SPACES["action"])), "canonical space of actions, with poses as state")
    vectors: str = option("all", one_of(("all", "none")), "all, or none: no actions, states and texts")
    samples_per_episode: int = option(0, whole_number(0), "pairs of each episode in an epoch, 0 for all")
    shuffle: str = option("global", str, "global, block:N or none")
    transform: str = option("none", one_of(("none", "normalize")), "transform of each batch: none or normalize")
    decode: Decode = option("host", one_of(get_args(Decode)), "where JPEG is decoded: host, or device (nvJPEG on CUDA)")
    warmup: int = option(8, whole_number(1), "batches that are not measured, the first one included")
    steps: int = option(160, whole_number(1), "batches that are measured")
    compute_sleep_ms: float = option(0.0, number(0), "milliseconds that the trainer sleeps after each batch")
    seed: int = option(0, whole_number(0), "seed of the order of samples")
    limit_s: float = option(1.0, number(0), "seconds of each slice of decoding alone; 0 is the same as --no-limit")


def _frame(option_text: str) -> int | str:
    return int(option_text) if option_text.lstrip("-").isdecimal() else option_text


def open_loader(parameters: Parameters) -> Loader:
    """Make the loader of a point, without starting it."""
    catalog = Catalog(parameters.root)
    members = resolve_mixture(parameters.mixture, parameters.split, catalog).members
    if parameters.datasets is not None:
        if parameters.datasets > len(members):
            message = f"mixture {parameters.mixture} has {len(members)} members"
            raise ArgumentError(f"datasets={parameters.datasets}: {message}")
        members = tuple(dataclasses.replace(member, weights=(1.0,)) for member in members[: parameters.datasets])
    cameras = parameters.cameras.split("+")
    frames = Frames(
        None if parameters.frames == "none" else [_frame(frame) for frame in parameters.frames.split("+")],
        cameras=cameras if len(cameras) > 1 else None if cameras == ["primary"] else cameras[0],
        edges=parameters.edges,
        decode=parameters.decode,
    )
    space: Any = None if parameters.space == "none" else parameters.space
    action = Vector(parameters.action_steps, space=space, on_unmapped="mask", on_unknown_units="keep")
    state = Vector(space=None if space is None else "eef", on_unmapped="mask", on_unknown_units="keep")
    has_vectors = parameters.vectors == "all"
    spec = SampleSpec(
        seed=parameters.seed,
        shuffle=parameters.shuffle,
        samples_per_episode=parameters.samples_per_episode,
        frames=frames,
        action=action if has_vectors else None,
        state=state if has_vectors else None,
        language="language" if has_vectors else None,
    )
    data = OpenMixture(parameters.root, Mixture(_weighted(members, parameters.weight)), spec, catalog=catalog)
    running = RunConfig(
        batch_size=parameters.batch_size,
        workers=Workers(parameters.num_workers, threads=parameters.threads, prefetch=parameters.prefetch),
        transforms=(Normalize(data),) if parameters.transform == "normalize" else (),
        decode=parameters.decode,
    )
    return Loader(data, running)


def _weighted(members: Sequence[Member], option_text: str) -> tuple[Member, ...]:
    """Return the members with the weights of ``--weight``, without members of weight 0."""
    names = [member.dataset for member in members]
    new_weights = _weights_of(option_text)
    if unknown := [dataset_name for dataset_name in new_weights if dataset_name not in names]:
        raise ArgumentError(f"weight {unknown[0]}: no such member; {closest(unknown[0], names, noun='members')}")
    changed = [
        dataclasses.replace(member, weights=(new_weights[member.dataset],)) if member.dataset in new_weights else member
        for member in members
    ]
    return tuple(member for member in changed if any(member.weights))
