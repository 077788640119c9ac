"""Fields that a loader uses of a manifest's free-form parts: offset of pairs, sizes of frames, columns of vectors.

``parameters``, ``spec`` and ``image`` record the complete settings of a conversion. The loader's few fields decide how
much memory a batch needs, so they are validated strictly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BaseModel, Field, StringConstraints, ValidationError, model_validator

from stream.base.errors import FormatError, first_fault
from stream.format.frame import Codec, StoredCamera
from stream.format.manifest import Manifest
from stream.format.names import MAX_FRAMES, Layout
from stream.format.spaces import Space, SpaceName
from stream.format.video import MAX_GOP, VIDEO_CODECS

_Index = Annotated[int, Field(strict=True, ge=0, lt=2**20)]
_Size = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$")]
_MAX_DIMS = 2**16

Kind = Literal["displacement", "velocity", "target", "absolute", "flag"]
"""Change in one step, change per second, commanded value, measured value, or a choice without a unit."""
_Rotation = Literal["ee_rotation_euler", "ee_rotation_axis_angle", "ee_rotation_quaternion"]
_Effort = Literal["ee_linear_velocity", "ee_angular_velocity", "ee_force", "ee_torque"]
_Joint = Literal["joint_position", "joint_velocity", "joint_torque", "gripper", "base_position", "base_rotation"]
Quantity = Literal["ee_position", _Rotation, "ee_pose_matrix", _Effort, _Joint, "terminate", "object", "other"]
"""What a dimension measures or commands."""


class Part(BaseModel):
    """Consecutive dimensions of a vector that come from one column: the values in ``select``, or all ``dims``."""

    path: str
    dims: Annotated[int, Field(strict=True, ge=1, le=_MAX_DIMS)] | None = None
    select: Annotated[tuple[_Index, ...], Field(min_length=1, max_length=_MAX_DIMS)] | None = None
    names: tuple[str, ...] | None = None
    kind: Kind
    quantity: str = ""
    unit: str | None = None
    order: str | None = None

    @property
    def indices(self) -> Sequence[int]:
        """Indices of the values in the column."""
        return range(self.dims or 0) if self.select is None else self.select

    @model_validator(mode="after")
    def _consistent(self) -> Part:
        num_values = len(self.indices)
        if not num_values:
            raise ValueError("has neither dims nor select")
        if self.names is not None and len(self.names) != num_values:
            raise ValueError(f"has {len(self.names)} names for {num_values} values")
        return self


_Parts = Annotated[tuple[Part, ...], Field(max_length=1000)]


class SpecCamera(BaseModel):
    """Camera of the registry's entry."""

    path: str
    role: str


def _at(*path: str, **settings: Any) -> Any:
    """Return a field of the manifest by its path."""
    return Field(validation_alias=AliasPath(*path), **settings)


class Fields(BaseModel):
    """A loader's fields of ``parameters``, ``spec`` and ``image``; the keys of ``sizes`` are "HxW".

    The layout ``pairs`` has ``camera`` and ``frame_offsets``, the layout ``frames`` has ``cameras``, ``camera_sizes``
    and, for the depth cameras, the millimetres of a 1 in the source. ``codec`` has the cameras without JPEGs, ``gop``
    the video cameras.
    """

    layout: Layout
    offset: int = _at("parameters", "offset", strict=True, ge=1, le=1_000_000)
    frame_offsets: tuple[_Index, ...] = _at("parameters", "frame_offsets", default=(), max_length=MAX_FRAMES)
    camera: str = _at("parameters", "camera", default="")
    cameras: tuple[str, ...] = _at("parameters", "cameras", default=(), max_length=100)
    depth: dict[str, float | None] = _at("parameters", "depth", default_factory=dict)
    codec: dict[str, Codec] = _at("parameters", "codec", default_factory=dict)
    gop: dict[str, Annotated[int, Field(strict=True, ge=1, le=MAX_GOP)]] = _at(
        "parameters", "gop", default_factory=dict
    )
    spec_cameras: dict[str, SpecCamera] = _at("spec", "cameras", default_factory=dict)
    action: _Parts = _at("spec", "action", default=())
    state: _Parts = _at("spec", "state", default=())
    spaces: dict[SpaceName, Space] = _at("spec", "spaces", default_factory=dict)
    control_frequency: float | None = _at("spec", "control_frequency", default=None, strict=True, gt=0, le=1e5)
    sizes: dict[_Size, Any] = _at("image", "sizes")
    camera_sizes: dict[str, dict[_Size, Any]] = _at("image", "cameras", default_factory=dict)

    @property
    def stored_cameras(self) -> tuple[StoredCamera, ...]:
        """The cameras with stored frames, in the order of the column ``camera`` of ``records``."""
        if self.layout == "frames":
            return tuple(map(self._stored_camera, self.cameras))
        camera = next((name for name, spec in self.spec_cameras.items() if spec.path == self.camera), self.camera)
        role = self.spec_cameras[camera].role if camera in self.spec_cameras else ""
        return (StoredCamera(camera, role, _pixels(self.sizes), codec=self.codec.get(self.camera, "jpeg")),)

    def _stored_camera(self, name: str) -> StoredCamera:
        role, sizes, codec = (
            self.spec_cameras[name].role,
            _pixels(self.camera_sizes[name]),
            self.codec.get(name, "jpeg"),
        )
        return StoredCamera(name, role, sizes, name in self.depth, codec, self.gop.get(name, 1))

    @model_validator(mode="after")
    def _complete(self) -> Fields:
        if self.layout == "pairs" and not self.frame_offsets:
            raise ValueError("has no frame_offsets")
        videos = {camera for camera, codec in self.codec.items() if codec in VIDEO_CODECS}
        if videos != set(self.gop) or (videos and self.layout == "pairs"):
            names = ", ".join(sorted(videos)) or "no camera"
            raise ValueError(f"codec: video of {names}, gop of {', '.join(self.gop)}")
        missing = [name for name in self.cameras if name not in self.spec_cameras or name not in self.camera_sizes]
        if self.layout == "frames" and (not self.cameras or missing):
            raise ValueError(f"cameras: {', '.join(missing) or 'none'} of spec.cameras and image.cameras")
        return self


def _pixels(size_texts: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return sizes "HxW" as (height, width), sorted."""
    sides = (text.split("x") for text in size_texts)
    return tuple(sorted((int(height), int(width)) for height, width in sides))


def read_fields(manifest: Manifest, *, context: str) -> Fields:
    """Return a loader's fields of a manifest; raise FormatError with ``context``, the field and its value."""
    try:
        return Fields.model_validate({key: getattr(manifest, key) for key in ("layout", "parameters", "spec", "image")})
    except ValidationError as error:
        raise FormatError(f"{context}: field {first_fault(error)}; convert this dataset again") from None
