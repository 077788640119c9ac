"""Choice of an action or state of a sample: its steps, space and columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from stream.base.arguments import check_choice, check_probability
from stream.base.errors import ArgumentError
from stream.base.plain_values import canonical_columns, drop_names
from stream.base.value_object import ValueObject, known_fields
from stream.format.names import VectorName
from stream.sample.relative import Poses, RelativeTo
from stream.sample.rotations import ROTATIONS, Rotation
from stream.sample.window import canonical_steps

ActionSpace = Literal["oxe", "eef_delta", "joint", "eef"]
StateSpace = Literal["eef", "joint"]
Space = Literal["oxe", "eef_delta", "joint", "eef"]
Reduction = Literal["sum", "mean", "first"]
Unmapped = Literal["error", "mask", "drop"]
UnknownUnits = Literal["error", "keep"]
VectorEdges = Literal["mask", "repeat"]
SPACES: dict[VectorName, tuple[Space, ...]] = {"action": get_args(ActionSpace), "state": get_args(StateSpace)}
MOST_STEPS = 100_000
STEP_LIMITS = {"steps": 1, "start": -MOST_STEPS, "stride": 1, "min_delay": 0, "max_delay": 0}
"""Least value of each count of steps, which may also be a time."""


@known_fields
@dataclass(frozen=True, repr=False)
class Vector(ValueObject):
    """An action or state of a sample: steps of the episode from ``t + start`` on::

        step                     0  1  2  3  4  5  6  7      an episode of 8 steps
        Vector(3)                         t  a  a            t = 3: actions 3, 4 and 5
        Vector(4, start=-1)            a  t  a  a            actions 2 to 5
        Vector(3), t = 6                           t  a  .   the third is beyond the episode: 0, with mask False
        Vector(3, stride=2)            t     a     a         t = 2: actions 2, 4 and 6

    Args:
        steps: Count of steps, at most 100,000, or seconds by each dataset's rate (``"1s"``). Steps beyond the episode,
            and beyond a dataset's count if others have more, are masked. By default each dataset's offset for the
            action, and 1 for the state. A state of 1 step has no dimension of steps.
        start: First step, relative to t; a number, or seconds (``"-0.2s"``).
        stride: Steps of the episode from one step to the next: a number, or seconds (``"0.1s"``), to the nearest step
            by each dataset's rate. A time for ``steps`` counts the steps of the episode in it, of which every
            ``stride``-th is taken.
        edges: ``mask`` for zeros with mask False at steps beyond the episode; ``repeat`` for the first or last step of
            the episode, with mask True.
        space: Space that every dataset is mapped to. Of the action ``oxe``, the 7 numbers of OpenVLA and Octo;
            ``eef_delta``, the same in metres and radians a step; ``joint``; or ``eef``, the measured poses of the end
            effector from t on, for policies that are trained to reach them. Of the state ``eef``, the pose of the end
            effector, or ``joint``. None takes the registry's vector.
        columns: Columns of ``steps`` that replace the registry's vector, by dataset: names, or ``(name, [indices])``.
            Datasets with columns need no mapping to ``space``.
        reduce: One action for the window: ``sum``, ``mean`` or ``first``. None gives all steps.
        relative_to: Reference of positions and rotations: ``state`` at t, the ``first`` action of the chunk, or the
            ``previous`` step, which for the first is the state. Velocities, flags and ``absolute`` stay as they are.
        poses: ``componentwise`` subtracts every number; ``body`` composes poses in the frame of the tool
            (``T0^-1 T[k]``), ``world`` about the axes of the base (``p[k] - p0``, ``R[k] R0^-1``).
        rotation: Form of rotations: ``euler_xyz``, ``rotvec``, ``quat_xyzw``, ``rot6d_rows`` or ``rot6d_columns``. None
            keeps the dataset's.
        absolute: Names or quantities of dimensions that stay absolute; ``*`` matches any text. Dimensions of unknown
            quantity, such as those of ``columns``, also stay if their name contains one.
        per_step: Whether a normalisation has statistics for each step of the chunk.
        between: ``"frames"`` for the actions of each interval between two successive frames of the sample:
            [b, F - 1, W, A], W being the longest interval, with mask False beyond shorter ones; with ``reduce``
            [b, F - 1, A]. For clips, whose frames are at fixed, ascending steps.
        slots: Layout that all datasets of the mixture share: a width (``32``), up to which dimensions are padded; the
            name of a layout (``rdt``, ``pi``, ``being_h``, ``gr00t``); a YAML file of one, or a mapping like the file.
            Datasets map to its slots by quantity, side, unit and name. Numbers that a dataset lacks are 0, also after
            a normalisation, with mask False.
        dropout: Of the state: probability that a sample loses it. It is then 0, also after the normalisation, with mask
            False. Statistics, and actions relative to the state, have the true one.
        min_delay, max_delay: Of the action: limits of the delay d of real-time chunking, both included, in steps or
            seconds (``"0.1s"``). Batches then have d as ``action_delay``, and ``action_prefix_mask``, which is True for
            the first d steps. Actions stay as they are. By default there is no delay.
        on_unmapped: Treatment of datasets that do not map to ``space``: ``error``; ``mask``, zeros with mask False;
            ``drop``, a mixture without them. Of dimensions that no slot takes: ``error``; ``mask`` and ``drop`` leave
            them out.
        on_unknown_units: ``error`` for datasets whose units no source specifies, or ``keep`` their numbers as stored.

    Raises:
        ArgumentError: A value is wrong.

    >>> Vector(16, space="oxe"), Vector("1.5 s", start=-1)
    (Vector(16, space='oxe'), Vector('1.5s', start=-1))
    """

    positional: ClassVar[str] = "steps"

    steps: int | str | None = None
    _: KW_ONLY
    start: int | str = 0
    stride: int | str = 1
    edges: VectorEdges = "mask"
    space: Space | None = None
    columns: Mapping[str, Sequence[Any]] | Sequence[Any] | None = None
    reduce: Reduction | None = None
    between: Literal["frames"] | None = None
    relative_to: RelativeTo | None = None
    poses: Poses = "componentwise"
    rotation: Rotation | None = None
    absolute: Sequence[str] = ("gripper",)
    per_step: bool = False
    slots: int | str | Path | Mapping[str, Any] | None = None
    dropout: float = 0.0
    min_delay: int | str = 0
    max_delay: int | str = 0
    on_unmapped: Unmapped = "error"
    on_unknown_units: UnknownUnits = "error"

    def __post_init__(self) -> None:
        check_choice("space", self.space, (None, *get_args(Space)))
        check_choice("reduce", self.reduce, (None, *get_args(Reduction)))
        check_choice("between", self.between, (None, "frames"))
        check_choice("edges", self.edges, get_args(VectorEdges))
        step_fields = {"steps": self.steps, "start": self.start or None, "stride": self.stride if self.skips else None}
        if self.between and (chosen := [name for name, value in step_fields.items() if value is not None]):
            raise ArgumentError(
                f"between='frames' with {chosen[0]}: the frames define the steps of the actions; leave one of them out"
            )
        self._check_relative()
        check_choice("on_unmapped", self.on_unmapped, get_args(Unmapped))
        check_choice("on_unknown_units", self.on_unknown_units, get_args(UnknownUnits))
        for argument, least in STEP_LIMITS.items():
            if (value := getattr(self, argument)) is not None or argument.endswith("delay"):
                self._set(**{argument: canonical_steps(argument, value, least=least, most=MOST_STEPS)})
        self._set(columns=canonical_columns("columns", self.columns))
        self._set(dropout=check_probability("dropout", self.dropout))
        self._check_delay()
        self._check_stride()
        if self.slots is not None:
            from stream.sample.slot_layout import canonical_slots

            self._set(slots=canonical_slots(self.slots))
        if self.reduce and self.start:
            raise ArgumentError(
                f"start={self.start!r} with reduce={self.reduce!r}: one action for the window begins at t; leave one "
                "of them out"
            )
        if self.reduce == "sum" and self.space not in (None, "eef_delta"):
            raise ArgumentError(
                f"reduce='sum' with space={self.space!r}, whose values are not displacements in every dataset; take "
                "space='eef_delta'"
            )

    def _check_relative(self) -> None:
        check_choice("relative_to", self.relative_to, (None, *get_args(RelativeTo)))
        check_choice("poses", self.poses, get_args(Poses))
        check_choice("rotation", self.rotation, (None, *ROTATIONS))
        if not isinstance(self.absolute, list | tuple) or not all(isinstance(name, str) for name in self.absolute):
            raise ArgumentError(f"absolute={self.absolute!r:.100}; expected a list of names or quantities")
        if not isinstance(self.per_step, bool):
            raise ArgumentError(f"per_step={self.per_step!r:.100}; expected True or False")
        self._set(absolute=tuple(self.absolute))
        if self.relative_to is None and self.poses != "componentwise":
            raise ArgumentError(f"poses={self.poses!r} without relative_to; add relative_to='state'")
        if self.relative_to and self.rotation and self.poses == "componentwise":
            raise ArgumentError(
                f"rotation={self.rotation!r} with poses='componentwise', which subtracts the numbers of rotations; "
                "take poses='body' or 'world'"
            )
        if self.is_converted and (self.reduce or self.between):
            raise ArgumentError("relative_to and rotation cannot be combined with reduce and between; leave one out")
        if self.relative_to and self.space in ("oxe", "eef_delta"):
            raise ArgumentError(
                f"relative_to={self.relative_to!r} with space={self.space!r}, whose actions are displacements already; "
                "take space='joint' or None, or the columns of targets or measured poses"
            )

    def _check_stride(self) -> None:
        if self.reduce and self.skips:
            raise ArgumentError(
                f"stride={self.stride!r} with reduce={self.reduce!r}, which takes every step of the window; leave one "
                "of them out"
            )
        if self.edges == "repeat" and (self.reduce or self.between):
            raise ArgumentError("edges='repeat' cannot be combined with reduce and between; leave one of them out")

    def _check_delay(self) -> None:
        delay = f"max_delay={self.max_delay!r}"
        if self.min_delay and not self.has_delay:
            raise ArgumentError(f"min_delay={self.min_delay!r} without max_delay; give max_delay, the largest delay")
        if not self.has_delay:
            return
        if isinstance(self.min_delay, int) and isinstance(self.max_delay, int) and self.min_delay > self.max_delay:
            raise ArgumentError(f"min_delay={self.min_delay} with {delay}; expected min_delay <= max_delay")
        if self.reduce or self.between:
            other = f"reduce={self.reduce!r}" if self.reduce else f"between={self.between!r}"
            raise ArgumentError(f"{delay} with {other}: a delay is of a chunk of actions; leave one of them out")
        if self.start:
            raise ArgumentError(
                f"{delay} with start={self.start!r}: the actions that a robot runs in the meantime begin at t; leave "
                "start out"
            )

    @property
    def has_delay(self) -> bool:
        """True if a delay is drawn."""
        return self.max_delay != 0

    @property
    def skips(self) -> bool:
        """True if steps of the episode between those of the vector may be left out."""
        return self.stride != 1

    @property
    def is_converted(self) -> bool:
        """True if values are relative, or rotations have another form than in the dataset."""
        return self.relative_to is not None or self.rotation is not None

    def without(self, datasets: Collection[str]) -> Vector:
        """Return the vector without its columns of some datasets."""
        return replace(self, columns=drop_names(self.columns, datasets))

    def columns_of(self, dataset: str) -> Sequence[Any] | None:
        """Return the columns that the caller chose for a dataset, None for the registry's vector."""
        return self.columns.get(dataset) if isinstance(self.columns, Mapping) else self.columns
