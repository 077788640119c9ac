"""Arguments of ``make_loader`` for the batches of a trainer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from stream.base.errors import ArgumentError
from stream.order.frames import Frames
from stream.order.select import Select
from stream.order.vector import Vector

if TYPE_CHECKING:
    from stream.format.names import VectorName
    from stream.loader.loader import Loader
    from stream.loader.open_mixture import OpenMixture

Converted = TypeVar("Converted")


@dataclass(frozen=True, kw_only=True)
class TrainerSample:
    """Arguments of ``make_loader`` for the batches of a trainer: ``make_loader(root, mixture, **sample)``.

    Change any of them with ``dataclasses.replace``: ``replace(sample, action=replace(sample.action, steps=8))``.

    Attributes:
        frames, action, state, language, columns, select: As for ``make_loader``.
        transforms: Normalisation, and the conversion to the trainer's keys and types. Transforms in front of them see
            the batches of ``make_loader``.
    """

    frames: Frames
    action: Vector | None = Vector()
    state: Vector | None = Vector()
    language: str | Sequence[str] | None = "language"
    columns: Sequence[str] = ()
    select: Select = Select()
    transforms: Sequence[Any] = ()

    def keys(self) -> Iterable[str]:
        """Return the names of the arguments."""
        return self.__dataclass_fields__.keys()

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


def check_data(mixture: OpenMixture, needs: Sequence[VectorName]) -> None:
    """Raise ArgumentError for a depth camera, or a dataset without a vector that the trainer needs."""
    if depth := [camera.frames for camera in mixture.cameras if camera.is_depth]:
        raise ArgumentError(f"cameras: {', '.join(depth)}: this trainer takes pictures of colour; leave depth out")
    for vector_name in needs:
        vectors = zip(mixture.names, mixture.spec.vectors(vector_name), strict=True)
        if lacking := [name for name, vector in vectors if not vector.size]:
            raise ArgumentError(
                f"{vector_name}: {', '.join(lacking)} have none, and this trainer would learn zeros; declare the parts "
                "in a file for `pairstream reindex --config`, or leave these datasets out"
            )


def conversion(loader: Loader, kind: type[Converted]) -> Converted:
    """Return the conversion of a loader.

    Args:
        loader: Loader of a trainer's sample.
        kind: Conversion of this trainer.

    Raises:
        ArgumentError: The loader has another conversion, or none.
    """
    for transform in loader.run_config.transforms[-1:]:
        if isinstance(transform, kind):
            return transform
    raise ArgumentError(
        f"the loader is not one of {kind.__module__}.sample: its transforms are {loader.run_config.transforms!r:.200}; "
        f"make it with make_loader(..., **sample)"
    )


def check_mapping(name: str, value: Any, *, example: str) -> dict[str, Any]:
    """Return a mapping as dict; raise ArgumentError if it is not a mapping, or empty."""
    if not isinstance(value, Mapping) or not value:
        raise ArgumentError(f"{name}={value!r:.100}; expected a mapping such as {example}")
    return dict(value)


def check_preset(preset: Any, presets: Iterable[str]) -> None:
    """Raise ArgumentError for an unknown preset of a trainer."""
    names = list(presets)
    if not isinstance(preset, str) or preset not in names:
        raise ArgumentError(f"preset={preset!r:.100}; expected one of {', '.join(names)}")
