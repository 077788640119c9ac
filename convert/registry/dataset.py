"""What the converter must know about one dataset: cameras, action and state, instruction, quirks.

Paths of features are the flattened names of TFDS. One notation for both levels: ``observation/image`` is relative to
``steps``, ``/episode_metadata/robot`` (with a leading slash) is relative to the episode.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from convert.registry.config_file import ConfigError, shown
from stream.storage.errors import closest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names of datasets, mixtures and cameras: they become folders, files and parts of command lines."""
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)s")


def _feature_path(path: str) -> str:
    if not path.strip("/") or path.endswith("/") or "//" in path or path.removeprefix("/").startswith("steps/"):
        raise ValueError(
            f"found {shown(path)}; expected the flattened TFDS name, relative to `steps` (observation/image) or, "
            "with a leading slash, to the episode (/episode_metadata/robot)"
        )
    return path


def _step_path(path: str) -> str:
    if path.startswith("/"):
        raise ValueError(f"found {shown(path)}, a path of the episode; expected one of the steps, no leading slash")
    return _feature_path(path)


def _offset(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31:
        return value
    if isinstance(value, str) and (seconds := _SECONDS.fullmatch(value)) and 0 < float(seconds[1]) < 1e6:
        return value
    raise ValueError(f"found {shown(value)}; expected a positive number of steps (5) or of seconds ('0.6s')")


def unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values if none is there twice.

    Raises:
        ValueError: naming the first that is.
    """
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{shown(twice[0])} is listed twice")
    return values


Int = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
FeaturePath = Annotated[str, AfterValidator(_feature_path)]
StepPath = Annotated[str, AfterValidator(_step_path)]
Offset = Annotated[int | str, PlainValidator(_offset)]

SENTENCE_EMBEDDINGS = ("*language_embedding",)
"""Default of ``leave_out``: hundreds of numbers a step that repeat what the instruction says."""

Quantity = Literal[
    "ee_position",
    "ee_rotation_euler",
    "ee_rotation_axis_angle",
    "ee_rotation_quaternion",
    "ee_pose_matrix",
    "ee_linear_velocity",
    "ee_angular_velocity",
    "ee_force",
    "ee_torque",
    "joint_position",
    "joint_velocity",
    "joint_torque",
    "gripper",
    "base_position",
    "base_rotation",
    "terminate",
    "object",
    "other",
]


class Entry(BaseModel):
    """An immutable entry of a configuration that knows all of its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Camera(Entry):
    """One colour camera. Depth and segmentation images are not cameras."""

    path: StepPath = Field(description="Flattened TFDS name relative to `steps`, e.g. observation/image.")
    role: Literal["primary", "secondary", "wrist", "other"] = Field(
        description="Octo's and OpenVLA's use of it; every dataset has one primary camera."
    )
    channels: Literal["rgb", "bgr"] = Field(
        default="rgb", description="Order of the stored colours; bgr is put right when converting."
    )
    storage: Literal["jpeg", "png", "undeclared", "raw"] = Field(
        description="What features.json says; information only, the reader trusts the first bytes."
    )
    shape: tuple[Int, Int, Int] = Field(description="Height, width and channels as published; for estimates.")


class Gripper(Entry):
    """Which value of a gripper part means open and which closed, as stored."""

    open: Number = Field(description="Value when fully open (of a change: the value that opens).")
    closed: Number = Field(description="Value when fully closed (of a change: the value that closes).")

    @model_validator(mode="after")
    def _differ(self) -> Gripper:
        if self.open == self.closed:
            raise ValueError(f"open and closed are both {self.open}; leave `gripper` out if it is not known")
        return self


class Part(Entry):
    """One piece of the action or state vector; the parts in their order make the vector."""

    path: StepPath = Field(description="Flattened TFDS name relative to `steps`.")
    dims: Annotated[int, Field(strict=True, ge=1, lt=2**20)] = Field(description="How many values it contributes.")
    select: tuple[Int, ...] | None = Field(
        default=None, description="Which values of the flattened (row-major) feature, in this order; default all."
    )
    quantity: Quantity = Field(description="What is measured or commanded.")
    mode: Literal["delta", "velocity", "absolute", "flag"] = Field(
        description="delta and velocity may be summed over a window of steps, absolute and flag may not."
    )
    gripper: Gripper | None = Field(default=None, description="Convention of a gripper part, where it is certain.")
    names: tuple[Text, ...] | None = Field(default=None, description="Names of the values.")
    note: Text | None = Field(default=None, description="What else to know, with its source.")

    @model_validator(mode="after")
    def _consistent(self) -> Part:
        for field in ("select", "names"):
            values = getattr(self, field)
            if values is not None and len(values) != self.dims:
                raise ValueError(f"{field} lists {len(values)} values but dims is {self.dims}")
            unique(values or ())
        if self.gripper is not None and self.quantity != "gripper":
            raise ValueError(f"has a gripper convention but quantity {self.quantity}")
        return self


class Instruction(Entry):
    """Where the language instruction of an episode or step is."""

    path: FeaturePath = Field(description="Feature of the step, or with a leading slash of the episode.")
    encoding: Literal["text", "utf8_codes"] = Field(
        default="text", description="utf8_codes: integer tensor with one UTF-8 byte per element, padded with zeros."
    )
    alternatives: Annotated[tuple[FeaturePath, ...], AfterValidator(unique)] = Field(
        default=(), description="Tried in this order where `path` is empty; same notation and encoding."
    )
    informative: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="False where the text is constant or does not describe the episode (see quirks)."
    )


class DatasetSpec(Entry):
    """Everything that the converter needs to know about one TFDS/RLDS dataset."""

    name: Text = Field(description="Name in this registry, of the output folder and in mixtures.")
    tfds_name: Text = Field(description="Folder and record file prefix of the TFDS dataset.")
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = Field(description="TFDS version, e.g. '0.1.0'.")
    description: Text = Field(description="One sentence.")
    cameras: dict[Text, Camera] = Field(min_length=1, description="By name, as a rule the last component of the path.")
    instruction: Instruction | None = Field(default=None, description="None: the dataset has no language.")
    action: tuple[Part, ...] = Field(default=(), description="Parts of the default action vector.")
    action_text: StepPath | None = Field(default=None, description="Feature with an action in words.")
    state: tuple[Part, ...] = Field(default=(), description="Parts of the default state vector.")
    robot_path: FeaturePath | None = Field(default=None, description="Feature that names the robot.")
    robot: Text | None = Field(default=None, description="The robot, where all episodes have the same.")
    control_frequency: Annotated[float, Field(strict=True, gt=0, le=1e5)] | None = Field(
        default=None, description="Steps per second; None where steps are not equally spaced in time."
    )
    offset: Offset = Field(default=5, description="Default distance of a pair, in steps (5) or seconds ('0.6s').")
    splits: dict[Text, Int] = Field(default_factory=dict, description="Episodes per split, as published.")
    steps_per_episode: Annotated[float, Field(strict=True, gt=0, le=1e9)] | None = Field(
        default=None, description="Mean of the train split, for estimates."
    )
    leave_out: tuple[FeaturePath, ...] = Field(
        default=SENTENCE_EMBEDDINGS,
        description="Patterns (fnmatch) of large features that are not converted; default the embeddings of sentences.",
    )
    quirks: tuple[Text, ...] = Field(default=(), description="What surprises in the data, one sentence each.")
    success_path: FeaturePath | None = Field(default=None, description="Feature that tells success of the episode.")
    warning: Text | None = Field(default=None, description="Shown when converting: broken or not a video.")

    @model_validator(mode="after")
    def _consistent(self) -> DatasetSpec:
        for field in ("name", "tfds_name"):
            if not NAME.fullmatch(getattr(self, field)):
                raise ValueError(f"the {field} {shown(getattr(self, field))} is not of letters, digits and ._-")
        if bad := [name for name in self.cameras if not NAME.fullmatch(name)]:
            raise ValueError(f"the name of camera {shown(bad[0])} is not of letters, digits and ._-")
        primary = [name for name, camera in self.cameras.items() if camera.role == "primary"]
        if len(primary) != 1:
            raise ValueError(
                f"has {len(primary)} cameras with role primary; give it to one of {', '.join(self.cameras)}"
            )
        if self.robot is not None and self.robot_path is not None:
            raise ValueError("has both robot and robot_path; keep one")
        if isinstance(self.offset, str) and self.control_frequency is None:
            raise ValueError(f"offset {self.offset} is in seconds but there is no control_frequency")
        for part in (*self.action, *self.state):
            if self.leaves_out(part.path):
                raise ValueError(f"leave_out would drop {part.path}, which is part of action or state")
        return self

    def camera(self, name_or_role: str) -> Camera:
        """Find a camera by its name, role or path.

        Raises:
            ConfigError: there is none, or several have that role.
        """
        if name_or_role in self.cameras:
            return self.cameras[name_or_role]
        hits = {name: c for name, c in self.cameras.items() if name_or_role in (c.role, c.path, f"steps/{c.path}")}
        if len(hits) == 1:
            return next(iter(hits.values()))
        if hits:
            raise ConfigError(
                f"{self.name} has {len(hits)} cameras with role {name_or_role}: {', '.join(hits)}; name one"
            )
        have = ", ".join(f"{name} ({camera.role})" for name, camera in self.cameras.items())
        known = {text for name, camera in self.cameras.items() for text in (name, camera.role, camera.path)}
        hint = closest(name_or_role, known, noun="choices")
        suggestion = f"; {hint}" if hint.startswith("did you") else ""
        raise ConfigError(f"{self.name} has no camera {shown(name_or_role)}; it has {have}{suggestion}")

    def leaves_out(self, path: str) -> bool:
        """Whether the converter does not copy a feature; ``path`` in the notation of this module."""
        return any(fnmatchcase(path, pattern) for pattern in self.leave_out)

    @property
    def primary(self) -> Camera:
        """The primary camera."""
        return self.camera("primary")

    @property
    def action_dim(self) -> int:
        """Length of the default action vector."""
        return sum(part.dims for part in self.action)

    @property
    def state_dim(self) -> int:
        """Length of the default state vector."""
        return sum(part.dims for part in self.state)


def changed_fields(old: Mapping[str, Any], spec: DatasetSpec) -> list[str]:
    """Return the fields of a registry entry that are not as an older one, that of a manifest, has them."""
    try:
        before = DatasetSpec.model_validate(old)
    except ValidationError:
        return ["all"]
    return [name for name in DatasetSpec.model_fields if getattr(before, name) != getattr(spec, name)]
