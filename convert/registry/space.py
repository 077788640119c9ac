"""Mapping of a dataset to a canonical space, as YAML declares it: terms in order, each from one column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from stream.base.configs import Entry
from stream.format.names import DERIVED, DerivedName
from stream.format.spaces import SpaceName, space_names

Int = Annotated[int, Field(ge=0, lt=2**31)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


def check_path(feature_path: str) -> str:
    """Return a path of a feature; raise ValueError if it starts with ``steps/``."""
    if feature_path.startswith("steps/"):
        raise ValueError(f"found {feature_path!r:.80}; paths are relative to `steps`, so leave `steps/` out")
    return feature_path


def _check_step_path(feature_path: str) -> str:
    if feature_path.startswith("/"):
        expected = "expected one of the steps, no leading slash"
        raise ValueError(f"found {feature_path!r:.80}, a path of the episode; {expected}")
    return feature_path


def inherit(spaces: Any) -> Any:
    """Give each space with ``like`` what it does not write itself of the space that it names."""
    if not isinstance(spaces, dict):
        return spaces
    inherited = dict(spaces)
    for space_name, space_entry in spaces.items():
        if isinstance(space_entry, dict) and "like" in space_entry:
            base_entry = spaces.get(space_entry["like"])
            if not isinstance(base_entry, dict) or "like" in base_entry:
                like = space_entry["like"]
                raise ValueError(f"{space_name}: like is {like!r:.80}, expected a space that is written out")
            written_keys = {name: value for name, value in space_entry.items() if name != "like"}
            inherited[space_name] = {name: base_entry[name] for name in _INHERITED if name in base_entry} | written_keys
    return inherited


FeaturePath = Annotated[Text, AfterValidator(check_path)]
StepPath = Annotated[FeaturePath, AfterValidator(_check_step_path)]

_Plain = Literal["invert", "clip", "binarize", "relative_to_absolute", "fraction", "scale", "per_step"]
_Steps = Literal["reached", "since_last", "turned"]
_Angles = Literal["axis_angle", "quaternion_xyzw", "quaternion_wxyz", "matrix"]
OperationName = Literal[_Plain, _Steps, _Angles]
_VALUES = {"fraction": 2, "scale": 1}
_INHERITED = ("action", "state", "drop_first", "drop_last", "unknown_units")
_DIMENSIONS = {"quaternion_xyzw": 4, "quaternion_wxyz": 4, "matrix": 9, "axis_angle": 3, "turned": 3}


def _read_operation(yaml_value: Any) -> Any:
    """Read ``invert``, ``{scale: 0.1}`` or ``{fraction: [closed, open]}``."""
    if isinstance(yaml_value, str):
        return {"name": yaml_value}
    if isinstance(yaml_value, dict) and len(yaml_value) == 1 and "name" not in yaml_value:
        [(operation_name, values)] = yaml_value.items()
        return {"name": operation_name, "values": values if isinstance(values, list | tuple) else [values]}
    return yaml_value


class Operation(Entry):
    """A named operation on the values of an episode; ``convert.index.operations`` says what each does."""

    name: OperationName
    values: tuple[Number, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Operation:
        if len(self.values) != _VALUES.get(self.name, 0):
            raise ValueError(f"{self.name} has {len(self.values)} values, expected {_VALUES.get(self.name, 0)}")
        if self.name == "fraction" and self.values[0] == self.values[1]:
            raise ValueError(f"fraction takes [closed, open], both are {self.values[0]:g}")
        return self


class Term(Entry):
    """Some dimensions of a space.

    Attributes:
        path: Feature of the steps; its values go through ``then``.
        select: Chosen values of the flattened (row-major) feature, in this order.
        dims: Count of chosen values, or of all values of the feature; default 1 without ``select``.
        then: Operations, in order.
        fill: True constant, such as the displacement along an axis that the robot cannot move.
        pad: Count of dimensions that the dataset has no number for: value 0, mask False.
        names: Names of joints.
    """

    path: StepPath | None = None
    select: tuple[Int, ...] | None = None
    dims: Annotated[int, Field(ge=1, le=1000)] = 1
    then: tuple[Annotated[Operation, BeforeValidator(_read_operation)], ...] = ()
    fill: Number | None = None
    pad: Annotated[int, Field(ge=1, le=1000)] | None = None
    names: tuple[Text, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _count(cls, content: Any) -> Any:
        if isinstance(content, dict) and "dims" not in content:
            select, pad = content.get("select"), content.get("pad")
            dims = len(select) if isinstance(select, list | tuple) and select else pad
            return content if dims is None else {**content, "dims": dims}
        return content

    @model_validator(mode="after")
    def _check(self) -> Term:
        if sum(alternative is not None for alternative in (self.path, self.fill, self.pad)) != 1:
            raise ValueError("expected one of path, fill and pad")
        if self.path is None and (self.select is not None or self.then):
            raise ValueError("has select or then, but no path")
        if self.select is not None and len(self.select) != self.dims:
            raise ValueError(f"select has {len(self.select)} values, dims is {self.dims}")
        num_dimensions = self.dims
        for operation in self.then:
            if (expected := _DIMENSIONS.get(operation.name, num_dimensions)) != num_dimensions:
                raise ValueError(f"{operation.name} takes {expected} values, there are {num_dimensions}")
            num_dimensions = 3 if operation.name in _DIMENSIONS else num_dimensions
        if self.names is not None and len(self.names) != self.size:
            raise ValueError(f"has {len(self.names)} names for {self.size} dimensions")
        return self

    @property
    def size(self) -> int:
        """Count of dimensions of the space."""
        return 3 if any(operation.name in _DIMENSIONS for operation in self.then) else self.dims


@dataclass(frozen=True)
class MappedVector:
    """A derived column of a space: its terms in order, the names of its dimensions, and steps per second.

    ``drop_first`` and ``drop_last`` count the steps at either end of an episode without an action.
    """

    terms: tuple[Term, ...]
    names: tuple[str, ...]
    drop_first: int = 0
    drop_last: int = 0
    rate: float | None = None


class Space(Entry):
    """Mapping of a dataset to one space. In YAML, ``like: oxe`` takes the terms of another space, see ``inherit``.

    Attributes:
        action, state: Terms of the columns ``action_<space>`` and ``state_<space>``.
        drop_first, drop_last: Count of steps at either end of an episode that have no action.
        follows: Project whose standardisation transform ``oxe`` equals.
        unknown_units: Dimensions whose unit or convention is not known.
        unmapped: Reason why the dataset does not map to this space.
        note: Remark, with its source: where the projects differ, which poses are differenced.
    """

    action: tuple[Term, ...] = ()
    state: tuple[Term, ...] = ()
    drop_first: Int = 0
    drop_last: Int = 0
    follows: Literal["openvla", "octo"] | None = None
    unknown_units: tuple[Text, ...] = ()
    unmapped: Text | None = None
    note: Text | None = None

    @model_validator(mode="after")
    def _check(self) -> Space:
        if bool(self.action or self.state) == bool(self.unmapped):
            raise ValueError("expected terms of action or state, or the reason why it is unmapped")
        return self

    def vectors(self, space_name: SpaceName, frequency: float | None) -> dict[DerivedName, MappedVector]:
        """Return the derived columns of this space, of a dataset with ``frequency`` steps per second.

        Raises:
            ValueError: The terms have other dimensions than the space, or need a rate.
        """
        mapped_vectors: dict[DerivedName, MappedVector] = {}
        for vector_name, terms in (("action", self.action), ("state", self.state)):
            if not terms:
                continue
            derived_column = next((name for name in DERIVED if name == f"{vector_name}_{space_name}"), None)
            if derived_column is None:
                raise ValueError(f"{space_name}: is no space of the {vector_name}")
            dimension_names = space_names(space_name, ((term.dims, term.names) for term in terms))
            num_dimensions = sum(term.size for term in terms)
            if num_dimensions != len(dimension_names):
                expected = ", ".join(dimension_names)
                raise ValueError(f"{space_name}: {vector_name} has {num_dimensions} dimensions, expected {expected}")
            if frequency is None and any(operation.name == "per_step" for term in terms for operation in term.then):
                raise ValueError(f"{space_name}: per_step needs a control_frequency")
            dropped_steps = (self.drop_first, self.drop_last) if vector_name == "action" else (0, 0)
            mapped_vectors[derived_column] = MappedVector(terms, dimension_names, *dropped_steps, frequency)
        if unknown := set(self.unknown_units).difference(*(mapped.names for mapped in mapped_vectors.values())):
            raise ValueError(f"{space_name}: unknown_units names {min(unknown)!r}, which is no dimension")
        return mapped_vectors
