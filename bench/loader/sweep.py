"""The parameters of one measured point of the loader's benchmark, and the points that sweeps make of them."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stream.batch.spec import METADATA
from stream.format.catalog import Catalog
from stream.loader.loader import Loader
from stream.loader.mixed import MixedData, Options
from stream.loader.normalize import Normalize
from stream.loader.running import Running
from stream.order.mixture import Member, resolve_mixture
from stream.storage.arguments import whole
from stream.storage.errors import ArgumentError, closest


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What one point is measured with; see ``PARAMETERS`` for what each is."""

    root: str = "build/demo/oxe"
    mixture: str = "oxe29"
    datasets: int | None = None
    weight: str = "none"
    split: str = "train"
    batch_size: int = 64
    num_workers: int = 2
    threads: int | None = None
    prefetch: int = 2
    metadata: str = "full"
    samples_per_episode: int = 0
    shuffle: str = "global"
    transform: str = "none"
    warmup: int = 8
    steps: int = 160
    compute_sleep_ms: float = 0.0
    seed: int = 0
    limit_s: float = 1.0
    costs: bool = False


def open_loader(parameters: Parameters) -> Loader:
    """Make the loader of a point; nothing is started by that.

    Raises:
        ArgumentError: there is no such loader.
        stream.storage.errors.FormatError: a manifest or an index is damaged.
    """
    catalog = Catalog(parameters.root)
    members = resolve_mixture(parameters.mixture, parameters.split, catalog)
    if parameters.datasets is not None:
        if parameters.datasets > len(members):
            raise ArgumentError(
                f"datasets={parameters.datasets}: mixture {parameters.mixture} has {len(members)} members"
            )
        members = [dataclasses.replace(member, weight=1.0) for member in members[: parameters.datasets]]
    members = _weighted(members, parameters.weight)
    options = Options(
        seed=parameters.seed,
        shuffle=parameters.shuffle,
        samples_per_episode=parameters.samples_per_episode,
        metadata=parameters.metadata,  # type: ignore[arg-type]
    )
    data = MixedData(parameters.root, members, options, catalog=catalog)
    transforms = (Normalize(data),) if parameters.transform == "normalize" else ()
    running = Running(
        batch_size=parameters.batch_size,
        num_workers=parameters.num_workers,
        threads=parameters.threads,
        prefetch=parameters.prefetch,
        transforms=transforms,
    )
    return Loader(data, running)


def _weighted(members: list[Member], text: str) -> list[Member]:
    """Change weights as ``--weight`` says; a member with weight 0 is left out, as ``make_loader`` does it."""
    known = [member.dataset for member in members]
    other = _weights_of(text)
    for name in other:
        if name not in known:
            raise ArgumentError(f"weight {name}: no such member; {closest(name, known, noun='members')}")
    changed = [
        dataclasses.replace(member, weight=other[member.dataset]) if member.dataset in other else member
        for member in members
    ]
    return [member for member in changed if member.weight != 0]


def _weights_of(text: str) -> dict[str, float]:
    if text == "none":
        return {}
    return {name: float(value) for name, _, value in (part.rpartition(":") for part in text.split("+"))}


def _weights(text: str) -> str:
    try:
        if all(name and 0 <= value < 1e9 for name, value in _weights_of(text).items()):
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"found {text!r}, expected name:weight, several with + between, or none")


def duration(text: str) -> float:
    """Read a number of milliseconds or seconds; raises argparse.ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of at least 0")
    return value


def transform(text: str) -> str:
    """Read the name of a transform; raises argparse.ArgumentTypeError."""
    if text not in ("none", "normalize"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected none or normalize")
    return text


def metadata(text: str) -> str:
    """Read one of the loader's kinds of metadata; raises argparse.ArgumentTypeError."""
    if text not in METADATA:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected one of {', '.join(METADATA)}")
    return text


PARAMETERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "root": (str, "converted root; the default is what `make demo` leaves"),
    "mixture": (str, "name of a mixture or dataset, or a YAML file"),
    "datasets": (whole(1), "only the first so many members of the mixture, with equal weights"),
    "weight": (
        _weights,
        "other weights of members: name:weight, several with + between; none for those of the mixture",
    ),
    "split": (str, "role of the mixture, or split expression of a dataset"),
    "batch_size": (whole(1), "rows of a batch"),
    "num_workers": (whole(0), "worker processes; 0 makes batches in threads"),
    "threads": (whole(1), "threads of a worker, or of the trainer if there are no workers"),
    "prefetch": (whole(1), "batches that are ready or under way while the trainer works on one"),
    "metadata": (metadata, f"one of {', '.join(METADATA)}"),
    "samples_per_episode": (whole(0), "pairs of each episode in an epoch, 0 for all"),
    "shuffle": (str, "global, block:N or none"),
    "transform": (transform, "of each batch: none or normalize"),
    "warmup": (whole(1), "batches that are not measured, the first one included"),
    "steps": (whole(1), "batches that are measured"),
    "compute_sleep_ms": (duration, "the trainer sleeps so long after each batch"),
    "seed": (whole(0), "of the order of samples"),
    "limit_s": (duration, "seconds of each slice of decoding alone; 0 leaves it out, as --no-limit does"),
}
"""By name: what reads it from a text, and what it is."""


def parse_sweep(text: str, readers: Mapping[str, Callable[[str], Any]] | None = None) -> tuple[str, list[Any]]:
    """Read ``key=a,b,c``; returns the parameter's name and its values.

    Args:
        text: what was given.
        readers: by parameter, what reads a value; by default those of ``PARAMETERS``.

    >>> parse_sweep("num-workers=1,2,4")
    ('num_workers', [1, 2, 4])

    Raises:
        argparse.ArgumentTypeError: no such parameter, or a value that it cannot have.
    """
    key, equals, values = text.partition("=")
    name = key.strip().replace("-", "_")
    if not equals or not values.strip():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected key=a,b,c")
    known = readers or {key: entry[0] for key, entry in PARAMETERS.items()}
    if name not in known:
        raise argparse.ArgumentTypeError(f"no parameter {key!r}; {closest(name, known, noun='parameters')}")
    read = known[name]
    try:
        return name, [read(value.strip()) for value in values.split(",")]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


def make_points(sweeps: Sequence[tuple[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """Return the swept parameters of every point: all combinations, the last sweep changing fastest.

    >>> make_points([("seed", [1, 2]), ("threads", [1])])
    [{'seed': 1, 'threads': 1}, {'seed': 2, 'threads': 1}]
    """
    names = [name for name, _ in sweeps]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(values for _, values in sweeps))]


def label(point: Mapping[str, Any]) -> str:
    """Return a point's name in tables: its swept parameters."""
    return " ".join(f"{name}={value}" for name, value in point.items()) or "all"
