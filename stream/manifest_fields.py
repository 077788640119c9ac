"""The parts of a manifest that a loader takes from its free fields: the pairs' offset, the frames' size, the vectors.

``parameters``, ``spec`` and ``image`` are what the conversion had, in full; a loader takes a few numbers of them, which
say how much memory a batch needs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from stream.format import MAX_FRAMES, FormatError
from stream.manifest import Manifest

_Index = Annotated[int, Field(strict=True, ge=0, lt=2**20)]
_Text = Annotated[str, StringConstraints(max_length=1000)]
_MAX_DIMS = 2**16


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Part(_Fields):
    path: _Text
    dims: Annotated[int, Field(strict=True, ge=1, le=_MAX_DIMS)] | None = None
    select: Annotated[tuple[_Index, ...], Field(min_length=1, max_length=_MAX_DIMS)] | None = None
    names: tuple[_Text, ...] | None = None
    mode: Literal["delta", "velocity", "absolute", "flag"] = "absolute"

    @model_validator(mode="after")
    def _consistent(self) -> _Part:
        size = self.dims if self.select is None else len(self.select)
        if size is None:
            raise ValueError("has neither dims nor select")
        if self.names is not None and len(self.names) != size:
            raise ValueError(f"has {len(self.names)} names for {size} values")
        return self


_Parts = Annotated[tuple[_Part, ...], Field(max_length=1000)]


class _Spec(_Fields):
    action: _Parts | None = None
    state: _Parts | None = None
    control_frequency: Annotated[float, Field(strict=True, gt=0, le=1e5)] | None = None


class _Parameters(_Fields):
    offset: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    frame_offsets: Annotated[tuple[_Index, ...], Field(min_length=1, max_length=MAX_FRAMES)]
    columns: tuple[_Text, ...] = ()


class _Image(_Fields):
    sizes: dict[Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$")], Any]


class _Taken(_Fields):
    parameters: _Parameters
    spec: _Spec
    image: _Image


def check_fields(manifest: Manifest) -> None:
    """Check what a loader takes of ``parameters``, ``spec`` and ``image``.

    Raises:
        FormatError: names the field and what stands there.
    """
    try:
        _Taken.model_validate({key: getattr(manifest, key) for key in ("parameters", "spec", "image")})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        found = first["input"]
        shown = type(found).__name__ if isinstance(found, int) and abs(found) > 10**30 else f"{found!r:.80}"
        raise FormatError(f"field {where}: {first['msg']} (found {shown}); convert this dataset again") from None
