"""Fields that a loader uses of a manifest's free-form parts: offset of pairs, sizes of frames, columns of vectors.

``parameters``, ``spec`` and ``image`` record the complete settings of a conversion. The loader's few fields decide how
much memory a batch needs, so they are validated strictly.
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
    """Consecutive dimensions of a vector that come from one column: the values in ``select``, or all ``dims``."""

    path: str
    dims: Annotated[int, Field(strict=True, ge=1, le=_MAX_DIMS)] | None = None
    select: Annotated[tuple[_Index, ...], Field(min_length=1, max_length=_MAX_DIMS)] | None = None
    names: tuple[str, ...] | None = None
    mode: Literal["delta", "velocity", "absolute", "flag"] = "absolute"

    @property
    def indices(self) -> Sequence[int]:
        """Indices of the values in the column."""
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
    """A loader's fields of ``parameters``, ``spec`` and ``image``; the keys of ``sizes`` are "HxW"."""

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
    """Return a loader's fields of a manifest.

    Raises:
        FormatError: A field is wrong; the message names ``where``, the field and its value.
    """
    try:
        return Fields.model_validate({key: getattr(manifest, key) for key in ("parameters", "spec", "image")})
    except ValidationError as error:
        raise FormatError(f"{where}: field {first_fault(error)}; convert this dataset again") from None
