"""Entry of the registry for one dataset: cameras, action and state, instruction, quirks.

Paths of features are the flattened names of TFDS. One notation serves both levels: ``observation/image`` is relative to
``steps``, ``/episode_metadata/robot`` (with a leading slash) is relative to the episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from convert.errors import ConfigError
from convert.registry.space import FeaturePath, Int, MappedVector, Number, Space, StepPath, Text, inherit
from convert.shard.pairs import is_seconds
from stream.base.configs import Entry
from stream.format.fields import Kind, Quantity
from stream.format.mixture_file import Offset
from stream.format.names import DERIVED, MOTION, DerivedName
from stream.format.spaces import SpaceName

WIDE = 1024
"""Most numbers a step that a column has without a word in the registry."""
SENTENCE_EMBEDDINGS = ("*language_embedding",)
"""Default of ``leave_out``: hundreds of numbers a step that repeat the instruction."""


_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]*"
Name = Annotated[str, Field(pattern=f"^{_NAME}$")]
"""Name of a dataset, mixture or camera; names become folders, files and parts of command lines."""


class Camera(Entry):
    """A camera of colour or depth. Segmentation images are not cameras.

    Attributes:
        role: Use of the camera in Octo and OpenVLA; every dataset has one primary colour camera. That of a depth camera
            says which view it shares.
        kind: ``depth`` is stored without loss, as uint16 millimetres; --cameras names it by ``depth`` or its name.
        unit: Unit of stored depth; numbers of an ``unknown`` unit are kept, with a warning.
        scale: Millimetres of a stored 1, where it is another unit.
        channels: Order of the stored colours; the conversion turns bgr into rgb. ``unknown`` is kept, with a warning.
        storage, shape: Declared encoding, and height, width and channels as published. Information only.
    """

    path: StepPath
    role: Literal["primary", "secondary", "wrist", "other"]
    kind: Literal["colour", "depth"] = "colour"
    unit: Literal["mm", "m", "unknown"] | None = None
    scale: Annotated[float, Field(gt=0, le=1e6)] | None = None
    note: Text | None = None
    channels: Literal["rgb", "bgr", "unknown"] = "rgb"
    storage: Literal["jpeg", "png", "undeclared", "raw"] = "undeclared"
    shape: tuple[Int, Int, Int] | None = None

    @model_validator(mode="after")
    def _check(self) -> Camera:
        unit_fields = [name for name in ("unit", "scale") if getattr(self, name) is not None]
        if len(unit_fields) != (self.kind == "depth"):
            raise ValueError(
                f"is of kind {self.kind} and has {' and '.join(unit_fields) or 'no unit'}; a depth camera has `unit: "
                "mm`, `m` or `unknown`, or else `scale`, the millimetres of a stored 1; a colour camera has neither"
            )
        return self

    @property
    def is_depth(self) -> bool:
        """True if it measures depth."""
        return self.kind == "depth"

    @property
    def millimetres(self) -> float | None:
        """Millimetres of a stored 1, None if nobody knows."""
        return {"mm": 1.0, "m": 1000.0}.get(self.unit or "", self.scale)

    def keys(self, camera_name: str) -> tuple[str, ...]:
        """Return what --cameras and --image-size call a camera with a name, the closest first."""
        return (camera_name, f"depth/{self.role}", "depth") if self.is_depth else (camera_name, self.role, "all")


class Gripper(Entry):
    """Stored values of a gripper part that mean open and closed; if ``relative``, values that open and close it."""

    open: Number
    closed: Number
    relative: bool = False

    @model_validator(mode="after")
    def _differ(self) -> Gripper:
        if self.open == self.closed:
            raise ValueError(f"open and closed are both {self.open}; leave `gripper` out if it is not known")
        return self


def _known(yaml_value: Any) -> Any:
    return None if yaml_value == "unknown" else yaml_value


_FACTS = ("kind", "frame", "unit", "order", "gripper")


def _split_keys(sources: Any) -> Any:
    """Give each of the fields of a key ``frame, unit`` its source."""
    if not isinstance(sources, dict):
        return sources
    source_by_field = {name.strip(): source for key, source in sources.items() for name in str(key).split(",")}
    for field_name in source_by_field:
        if field_name not in _FACTS:
            raise ValueError(f"source of {field_name!r:.80}; expected one of {', '.join(_FACTS)}")
    return source_by_field


Sources = Annotated[dict[str, Text], BeforeValidator(_split_keys)]
"""Source of each fact by its field; for an unknown fact, where it was looked for."""


class Part(Entry):
    """One piece of the action or state vector; the parts in their order make the vector.

    Attributes:
        dims: Count of values.
        select: Chosen values of the flattened (row-major) feature, in this order; default all.
        kind: displacement and velocity may be summed over a window of steps; target, absolute and flag may not.
        frame: Frame of reference of a pose or of its change.
        unit: Unit of the stored numbers; ``normalised`` has a ``scale`` where the source has it.
        scale: Factor from the stored numbers to m, rad, m/s or rad/s.
        order: Of Euler angles as scipy writes it (xyz is extrinsic, XYZ intrinsic), of a quaternion xyzw or wxyz, of a
            flattened matrix row or column.
        gripper: Convention of a gripper part, None if it is not known; YAML may say ``unknown``.
        sources: Source of each fact; default the dataset's ``sources``.
    """

    path: StepPath
    dims: Annotated[int, Field(ge=1, lt=2**20)]
    select: tuple[Int, ...] | None = None
    quantity: Quantity = "other"
    kind: Kind = "absolute"
    frame: Literal["base", "end_effector", "camera", "world", "unknown"] | None = None
    unit: Literal["m", "rad", "m/s", "rad/s", "mm", "deg", "N", "Nm", "normalised", "unknown"] | None = None
    scale: Number | None = None
    order: Annotated[str, Field(pattern=r"^([xyz]{1,3}|[XYZ]{1,3}|xyzw|wxyz|row|column|unknown)$")] | None = None
    gripper: Annotated[Gripper | None, BeforeValidator(_known)] = None
    names: tuple[Text, ...] | None = None
    note: Text | None = None
    sources: Sources = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Part:
        for field_name, values in (("select", self.select), ("names", self.names)):
            if values is not None and not len(values) == len(set(values)) == self.dims:
                raise ValueError(
                    f"{field_name} is {list(values)}, expected {self.dims} different values, as many as dims; dims is "
                    "the count of the values of this part, not of the feature"
                )
        if self.gripper is not None and self.quantity != "gripper":
            raise ValueError(f"has a gripper convention but quantity {self.quantity}")
        return self

    @property
    def facts(self) -> tuple[str, ...]:
        """Fields, each with a source, that a reader needs to understand the numbers."""
        fact_names = ["kind"]
        if self.quantity.startswith(("ee_", "base_")):
            fact_names.append("frame")
        if self.quantity.startswith(("ee_", "base_", "joint_")) and self.quantity != "ee_rotation_quaternion":
            fact_names.append("unit")
        if self.quantity in ("ee_rotation_euler", "ee_rotation_quaternion", "ee_pose_matrix"):
            fact_names.append("order")
        if self.quantity == "gripper" and self.kind not in ("velocity", "flag"):
            fact_names.append("gripper")
        return () if self.quantity in ("terminate", "other") else tuple(fact_names)


class Instruction(Entry):
    """Location of the language instruction.

    Attributes:
        path: Feature of the steps or the episode; of several texts the first that is not empty.
        encoding: utf8_codes is an integer tensor with one UTF-8 byte per element, padded with zeros.
        alternatives: Features to read in this order where ``path`` is empty; of the same encoding.
        informative: False where the text is constant or does not describe the episode (see quirks).
    """

    path: FeaturePath
    encoding: Literal["text", "utf8_codes"] = "text"
    alternatives: tuple[FeaturePath, ...] = ()
    informative: bool = True


@dataclass(frozen=True)
class Motion:
    """The derived column ``motion``: the L2 norm of what its parts do from a step to the next.

    Attributes:
        parts: Parts, none if the dataset does not say how far the robot moves.
        is_change: True if the parts are measured, so that their change counts; False if they are changes themselves.
    """

    parts: tuple[Part, ...] = ()
    is_change: bool = True

    @property
    def source(self) -> str:
        """Description for people.

        >>> Motion().source
        'no: nothing tells how far the robot moves'
        """
        quantities = " and ".join(dict.fromkeys(part.quantity for part in self.parts))
        vector_text = "change of the state's" if self.is_change else "the action's"
        return f"{vector_text} {quantities}" if quantities else "no: nothing tells how far the robot moves"


_STATE_MOTION = (("ee_position", "ee_pose_matrix"), ("joint_position",))
_ACTION_MOTION = (("ee_position", "ee_linear_velocity"), ("joint_position", "joint_velocity"))
_MATRIX_POSITION = {"row": (3, 7, 11), "column": (12, 13, 14)}


def motion_of(action: tuple[Part, ...], state: tuple[Part, ...]) -> Motion:
    """Return what ``motion`` is made of, the first that the dataset has.

    Measured are the position of the end effector, or else joints; commanded are the changes of either.
    """
    measured = tuple(_position(part) for part in state if part.kind == "absolute")
    commanded = tuple(part for part in action if part.kind in ("displacement", "velocity"))
    for vector_parts, quantity_choices in ((measured, _STATE_MOTION), (commanded, _ACTION_MOTION)):
        for quantities in quantity_choices:
            if moving_parts := tuple(part for part in vector_parts if part and part.quantity in quantities):
                return Motion(moving_parts, is_change=vector_parts is measured)
    return Motion()


def _position(part: Part) -> Part | None:
    """Return a part without the rotation of a pose matrix; None if the order of the matrix is not known."""
    if part.quantity != "ee_pose_matrix":
        return part
    matrix_positions = _MATRIX_POSITION.get(part.order or "")
    if matrix_positions is None or part.dims != 16:
        return None
    select = tuple((part.select or range(part.dims))[position] for position in matrix_positions)
    return part.model_copy(update={"select": select, "dims": 3, "names": None})


Vector = tuple[Part, ...] | MappedVector | Motion
"""Source of one derived column: parts, or a mapping to a space."""


class Vectors(BaseModel):
    """The keys of a registry entry that derived columns follow from; a manifest's entry may have others."""

    action: tuple[Part, ...] = ()
    state: tuple[Part, ...] = ()
    instruction: Instruction | None = None
    spaces: dict[SpaceName, Space] = Field(default_factory=dict)
    control_frequency: float | None = None


def derived_vectors(entry: Vectors | DatasetSpec) -> dict[DerivedName, Vector]:
    """Return what each derived column is made of; raises ValueError for a space whose terms do not fit."""
    vectors: dict[DerivedName, Vector] = {"action": entry.action, "state": entry.state}
    for space_name, mapping in entry.spaces.items():
        vectors |= mapping.vectors(space_name, entry.control_frequency)
    vectors[MOTION] = motion_of(entry.action, entry.state)
    return {column: vectors[column] for column in DERIVED if vectors.get(column)}


class DatasetSpec(Entry):
    """Everything that the converter needs to know about one TFDS/RLDS dataset.

    Attributes:
        name: Name in this registry, of the output folder and in mixtures.
        tfds_name: Name of the TFDS dataset, which is its folder, or ``NAME/CONFIGURATION``.
        cameras: Cameras by name, as a rule the last component of the path.
        action_text: Feature with an action in words.
        robot_path: Feature that names the robot.
        robot: Name of the robot, where all episodes have the same or ``robot_path`` is empty.
        control_frequency: Steps per second; None where steps are not equally spaced in time.
        offset: Default distance of a pair, in steps (5) or seconds (0.6s).
        splits: Episodes per split, as published.
        steps_per_episode: Mean of the train split, for estimates.
        leave_out: Patterns (fnmatch) of large features that are not converted; default the embeddings of sentences.
        wide: Patterns of features that are kept although they have more than ``WIDE`` numbers a step.
        quirks: Surprises in the data, one sentence each.
        success_path: Feature that becomes the column ``success`` of ``episodes``: 0 or 1, or a text with a folder
            ``success`` or ``failure``.
        warning: Text to show before converting a dataset that is broken or not a video.
        license: Licence of the data, with its source.
        sources: Source of each fact of the parts that do not name their own.
    """

    name: Name
    tfds_name: Annotated[str, Field(pattern=f"^{_NAME}(/{_NAME})?$")]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    description: Text
    cameras: dict[Name, Camera]
    instruction: Instruction | None = None
    action: tuple[Part, ...] = ()
    action_text: StepPath | None = None
    state: tuple[Part, ...] = ()
    robot_path: FeaturePath | None = None
    robot: Text | None = None
    control_frequency: Annotated[float, Field(strict=True, gt=0, le=1e5)] | None = None
    offset: Offset = 5
    splits: dict[Text, Int] = Field(default_factory=dict)
    steps_per_episode: Annotated[float, Field(gt=0, le=1e9)] | None = None
    leave_out: tuple[FeaturePath, ...] = SENTENCE_EMBEDDINGS
    wide: tuple[FeaturePath, ...] = ()
    quirks: tuple[Text, ...] = ()
    success_path: FeaturePath | None = None
    warning: Text | None = None
    license: Text | None = None
    spaces: Annotated[dict[SpaceName, Space], BeforeValidator(inherit)] = Field(default_factory=dict)
    sources: Sources = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> DatasetSpec:
        if not self.cameras:
            pictures = "uint8 [n, height, width, 3] or encoded"
            raise ValueError(f"has no cameras; name a feature of the steps with pictures: {pictures}")
        num_primary = sum(camera.role == "primary" and not camera.is_depth for camera in self.cameras.values())
        if num_primary != 1:
            cameras = ", ".join(self.cameras)
            raise ValueError(f"has {num_primary} colour cameras with role primary; give it to one of {cameras}")
        if is_seconds(self.offset) and self.control_frequency is None:
            raise ValueError(f"offset {self.offset} is in seconds but there is no control_frequency")
        derived_vectors(self)
        self._check_joint_grippers()
        return self

    def _check_joint_grippers(self) -> None:
        """Raise ValueError if a gripper counts as a joint of the space ``joint``, where only names tell them apart."""
        grippers = {
            (part.path, index)
            for part in (*self.action, *self.state)
            if part.quantity == "gripper"
            for index in part.select or range(part.dims)
        }
        mapping = self.spaces.get("joint")
        for vector_name in ("action", "state"):
            for number, term in enumerate(getattr(mapping, vector_name, ())):
                values = {(term.path, index) for index in term.select or range(term.dims)}
                if values & grippers and not any("gripper" in name for name in term.names or ()):
                    raise ValueError(
                        f"joint: {vector_name}.{number} has the gripper without its name, so it would be a joint; give "
                        "it a separate term with names: [gripper]"
                    )

    @property
    def vectors(self) -> dict[DerivedName, Vector]:
        """Derived columns that the dataset has."""
        return derived_vectors(self)

    def camera(self, name_or_role: str) -> Camera:
        """Find a camera by its name, role or path; raises ConfigError if no camera or several cameras match."""
        requested = name_or_role.removeprefix("steps/")
        if requested in self.cameras:
            return self.cameras[requested]
        matches = [name for name, camera in self.cameras.items() if requested in (*camera.keys(name)[:2], camera.path)]
        if len(matches) > 1:
            names = ", ".join(matches)
            raise ConfigError(f"{self.name} has {len(matches)} cameras with role {requested}: {names}; name one")
        if not matches:
            raise ConfigError(f"{self.name} has no camera {name_or_role!r}; it has {self.listed_cameras}")
        return self.cameras[matches[0]]

    @property
    def listed_cameras(self) -> str:
        """The names of the cameras with their roles, for people."""
        return ", ".join(f"{name} ({camera.keys(name)[1]})" for name, camera in self.cameras.items())

    def leaves_out(self, feature_path: str) -> bool:
        """Return whether the converter leaves a feature out."""
        return any(fnmatchcase(feature_path, pattern) for pattern in self.leave_out)

    def is_wide(self, feature_path: str) -> bool:
        """Return whether a feature may be wide."""
        return any(fnmatchcase(feature_path, pattern) for pattern in self.wide)

    @property
    def primary(self) -> Camera:
        """The primary camera."""
        return self.camera("primary")


def reindex_hint(
    old_entry: Mapping[str, Any], new_spec: DatasetSpec, *, output_root: str | Path, config: Sequence[str] = ()
) -> str | None:
    """Return one sentence with the remedy if a dataset was converted with another registry entry, else None.

    A new ``description`` needs no reindex, as no column or statistic depends on it.

    Args:
        old_entry: Registry entry in the manifest.
        new_spec: Registry entry now.
        output_root: Root of the dataset.
        config: Files that the registry was read with.
    """
    name = new_spec.name
    try:
        old_spec = DatasetSpec.model_validate(old_entry)
        keys = [key for key in DatasetSpec.model_fields if key != "description"]
        changed = [key for key in keys if getattr(old_spec, key) != getattr(new_spec, key)]
    except ValidationError:
        changed = ["all"]
    command = f"pairstream reindex {output_root} --datasets {name}{''.join(f' --config {file}' for file in config)}"
    reason = f"was converted with another registry entry of {name} (other {', '.join(changed)})"
    return f"{reason}; `{command}` brings derived columns and statistics up to date" if changed else None
