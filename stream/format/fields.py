"""The parts of a manifest that a loader takes from its free fields: the pairs' offset, the frames' size, the vectors.

``parameters``, ``spec`` and ``image`` are what the conversion had, in full; a loader takes a few numbers of them, which
say how much memory a batch needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BaseModel, Field, StringConstraints, ValidationError, model_validator

from stream.format.manifest import Manifest
from stream.format.names import MAX_FRAMES
from stream.storage.errors import FormatError, first_fault

_Index = Annotated[int, Field(strict=True, ge=0, lt=2**20)]
_Size = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$")]
_MAX_DIMS = 2**16


class Part(BaseModel):
    """Values of one column that stand next to each other in a vector: those of ``select``, or all ``dims`` of them."""

    path: str
    dims: Annotated[int, Field(strict=True, ge=1, le=_MAX_DIMS)] | None = None
    select: Annotated[tuple[_Index, ...], Field(min_length=1, max_length=_MAX_DIMS)] | None = None
    names: tuple[str, ...] | None = None
    mode: Literal["delta", "velocity", "absolute", "flag"] = "absolute"

    @property
    def indices(self) -> Sequence[int]:
        """Which values of the column they are."""
        return range(self.dims or 0) if self.select is None else self.select

    @model_validator(mode="after")
    def _consistent(self) -> Part:
        size = len(self.indices)
        if not size:
            raise ValueError("has neither dims nor select")
        if self.names is not None and len(self.names) != size:
            raise ValueError(f"has {len(self.names)} names for {size} values")
        return self


_Parts = Annotated[tuple[Part, ...], Field(max_length=1000)]


class Fields(BaseModel):
    """What a loader takes of ``parameters``, ``spec`` and ``image``; the sizes of frames are "HxW"."""

    offset: int = Field(strict=True, ge=1, le=1_000_000, validation_alias=AliasPath("parameters", "offset"))
    frame_offsets: tuple[_Index, ...] = Field(
        min_length=1, max_length=MAX_FRAMES, validation_alias=AliasPath("parameters", "frame_offsets")
    )
    action: _Parts = Field(default=(), validation_alias=AliasPath("spec", "action"))
    state: _Parts = Field(default=(), validation_alias=AliasPath("spec", "state"))
    control_frequency: float | None = Field(
        default=None, strict=True, gt=0, le=1e5, validation_alias=AliasPath("spec", "control_frequency")
    )
    sizes: dict[_Size, Any] = Field(validation_alias=AliasPath("image", "sizes"))


def read_fields(manifest: Manifest, *, where: str) -> Fields:
    """Return what a loader takes of ``parameters``, ``spec`` and ``image``.

    Raises:
        FormatError: Names ``where``, the field and what stands there.
    """
    try:
        return Fields.model_validate({key: getattr(manifest, key) for key in ("parameters", "spec", "image")})
    except ValidationError as error:
        raise FormatError(f"{where}: field {first_fault(error)}; convert this dataset again") from None
