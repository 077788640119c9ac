"""Arguments of ``make_loader`` for the batches of a trainer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, TypeVar

from stream.base.arguments import check_names
from stream.base.errors import ArgumentError
from stream.sample.frames import Frames
from stream.sample.select import Select
from stream.sample.vector import Vector
from stream.statistics.normalize import Normalize

NO_VECTOR: Any = None
"""Action or state of a trainer that takes none."""

if TYPE_CHECKING:
    from stream.loader.loader import Loader
    from stream.loader.open_mixture import OpenMixture

Converted = TypeVar("Converted")
Need = Literal["action", "state", "language"]
_P = ParamSpec("_P")


@dataclass(frozen=True, kw_only=True)
class TrainerSample:
    """Arguments of ``make_loader`` for the batches of a trainer: ``make_loader(root, mixture, **sample)``.

    Change any of them with ``dataclasses.replace``: ``replace(sample, action=replace(sample.action, steps=8))``.

    Attributes:
        frames, action, state, language, columns, select: As for ``make_loader``. A vector that a trainer does not take
            is None; the type leaves this out, so that ``replace(sample.action, ...)`` is typed.
        transforms: Normalisation, and the conversion to the trainer's keys and types. Transforms in front of them see
            the batches of ``make_loader``.
    """

    frames: Frames
    action: Vector = Vector()
    state: Vector = Vector()
    language: str | Sequence[str] | None = "language"
    columns: Sequence[str] = ()
    select: Select = Select()
    transforms: Sequence[Any] = ()

    def keys(self) -> Iterable[str]:
        """Return the names of the arguments."""
        return self.__dataclass_fields__.keys()

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


class Conversion:
    """Base of the conversions to the batches of a trainer."""

    takes_normalized: ClassVar[bool] = True
    """True if values may be normalised before, False if the trainer's own code normalises."""

    def check_transforms(self, transforms: Sequence[Any]) -> None:
        """Raise ArgumentError for a normalisation after the conversion, or of a trainer that normalises by itself."""
        is_after = False
        for transform in transforms:
            is_after |= transform is self
            if isinstance(transform, Normalize) and not self.takes_normalized:
                raise ArgumentError(f"transforms: {transform!r}, and the trainer normalises by itself; leave it out")
            if isinstance(transform, Normalize) and is_after:
                raise ArgumentError(
                    f"normalize: {transform!r} comes after the conversion to the trainer's keys; take the sample's "
                    "own normalize=, or replace(sample, transforms=[normalize, *sample.transforms])"
                )


def with_known_arguments(function: Callable[_P, TrainerSample]) -> Callable[_P, TrainerSample]:
    """Make a trainer's ``sample`` refuse an unknown keyword argument with the closest name of its signature."""
    parameter_names = tuple(inspect.signature(function).parameters)
    owner = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> TrainerSample:
        check_names(kwargs, parameter_names, owner=owner)
        return function(*args, **kwargs)

    return call


def check_data(
    mixture: OpenMixture, needs: Sequence[Need], *, cameras: Sequence[str], takes_slots: bool = False
) -> None:
    """Raise ArgumentError for data that a conversion does not fit.

    Args:
        mixture: Data of a loader.
        needs: Values that batches, and of the vectors every dataset, must have.
        cameras: Names of the cameras that batches must have.
        takes_slots: Whether the trainer takes vectors in a layout of the caller's.
    """
    spec = mixture.sample_spec
    for name in needs:
        if getattr(spec, name) is None:
            raise ArgumentError(f"{name}=None, and this trainer takes it; keep the {name} of its sample")
    for vector_name in () if takes_slots else mixture.spec.slots:
        raise ArgumentError(
            f"{vector_name}=Vector(slots={getattr(spec, vector_name).slots!r:.60}): this trainer's code lays its "
            "vectors out itself; leave slots out"
        )
    if depth := [camera.frames for camera in mixture.cameras if camera.is_depth]:
        raise ArgumentError(f"cameras: {', '.join(depth)}: this trainer takes pictures of colour; leave depth out")
    available = [camera.frames for camera in mixture.cameras]
    if (
        spec.frames is None
        or spec.frames.decode == "device"
        or not {f"frames/{name}" for name in cameras} <= {*available}
    ):
        raise ArgumentError(
            f"frames={spec.frames!r:.200}; this trainer takes decoded frames of {', '.join(cameras)}; change "
            "other fields: replace(sample.frames, size=(224, 224))"
        )
    for vector_name in (name for name in needs if name != "language"):
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
