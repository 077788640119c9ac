"""Choice of the augmentation of frames: its operations, their ranges, and the cameras that share a draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from stream.base.arguments import check_choice, check_whole_number
from stream.base.errors import ArgumentError
from stream.base.value_object import ValueObject, known_fields

Preset = Literal["openpi", "octo", "openvla", "lerobot"]
Library = Literal["torchvision", "tensorflow", "augmax"]
GeometryOrder = Literal["first", "last"]
Range = float | Sequence[float] | None
"""A number, or (least, most)."""

NEUTRAL: dict[str, dict[str, float]] = {
    "torchvision": {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0, "sharpness": 1.0},
    "tensorflow": {"brightness": 0.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0},
    "augmax": {"brightness": 0.0, "contrast": 0.0, "hue": 0.0},
}
"""Amount that changes nothing, of each operation on colours that a library has."""
_COLOURS = tuple(NEUTRAL["torchvision"])
_MOST_FACTOR = 10.0
_MOST_OFFSET = {"hue": 0.5, "contrast": 0.99}
"""Largest amount of an operation whose neutral amount is 0; 1 for others."""
_OPERATIONS = len(_COLOURS) + 1

_PRESETS: dict[str, dict[str, Any]] = {
    "openpi": {
        "library": "augmax",
        "crop": 0.95**2,
        "rotate": 5,
        "brightness": 0.3,
        "contrast": 0.4,
        "hue": 0.1,
        "colour_probability": 0.5,
        "share_cameras": True,
        "without_geometry": ["wrist"],
    },
    "octo": {
        "library": "tensorflow",
        "crop": [0.8, 1.0],
        "ratio": [0.9, 1.1],
        "brightness": 0.1,
        "contrast": 0.1,
        "saturation": 0.1,
        "hue": 0.05,
        "correlated": True,
        "without_geometry": ["wrist"],
    },
    "openvla": {
        "library": "tensorflow",
        "crop": 0.9,
        "brightness": 0.2,
        "contrast": 0.2,
        "saturation": 0.2,
        "hue": 0.05,
        "correlated": True,
    },
    "lerobot": {
        "library": "torchvision",
        "rotate": 5,
        "translate": 0.05,
        "brightness": 0.2,
        "contrast": 0.2,
        "saturation": 0.5,
        "hue": 0.05,
        "sharpness": 0.5,
        "most_operations": 3,
        "geometry": "last",
    },
}
_DEFAULTS: dict[str, Any] = {
    "library": "torchvision",
    "crop": 1.0,
    "ratio": 1.0,
    "rotate": 0.0,
    "translate": 0.0,
    "geometry": "first",
    "colour_probability": 1.0,
    "most_operations": None,
    "correlated": False,
    "share_cameras": False,
    "without_geometry": [],
}
"""Values without a preset; an operation on colours that is None has its neutral amount."""


@known_fields
@dataclass(frozen=True, repr=False)
class Augment(ValueObject):
    """Augmentation of frames, equal over all frames of a sample.

    Operations are applied in a fixed order: crop, rotation and translation together, in one bilinear resampling that
    keeps the size; then brightness, contrast, saturation, hue, sharpness. Amounts are drawn evenly from (seed, sample),
    so a row has the same picture on any rank, in any worker and in a replay. A field that is None has the value of the
    preset, or changes nothing without one. Frames that are black stay black. Depth gets the geometric operations, by
    the nearest value. ``docs/augmentation.md`` has the formulas.

    Args:
        preset: Operations of a trainer: ``openpi``, ``octo``, ``openvla`` or ``lerobot``; other fields replace its own.
        library: Library whose formulas are used: ``torchvision``, ``tensorflow`` or ``augmax``. A preset has its own.
        crop: Share of the area that is kept, as (least, most) or one number; 1 for all. It is resized back.
        ratio: Width by height of the crop, compared with the frame, as (least, most) or one number.
        rotate: Degrees, as (least, most), or ``x`` for (-x, x). Beyond the edge frames are black.
        translate: Largest shift as a share of height and width, in whole pixels.
        geometry: ``first`` or ``last``: whether crop, rotation and translation come before or after the colours.
        brightness, contrast, saturation: Factors, as (least, most), or ``x`` for (1 - x, 1 + x). The brightness of
            ``tensorflow`` and both amounts of ``augmax`` are added, ``x`` for (-x, x). ``augmax`` has no saturation.
        hue: Turns of the circle of colours, as (least, most), or ``x`` for (-x, x).
        sharpness: Factor, only of ``torchvision``.
        colour_probability: Probability that a sample gets the operations on colours.
        most_operations: Count of the operations that a sample gets, drawn from those that are chosen; crop, rotation
            and translation are one. None for all.
        correlated: Whether one number is drawn for all operations together, as in Octo and OpenVLA.
        share_cameras: Whether cameras share the draw. Cameras with and without geometric operations are two groups.
        without_geometry: Texts: a camera whose key, name or role has one of them gets only the operations on colours.

    Raises:
        ArgumentError: A value is wrong.

    >>> Augment("octo", hue=0.1)
    Augment('octo', hue=[-0.1, 0.1])
    """

    positional: ClassVar[str] = "preset"

    preset: Preset | None = None
    _: KW_ONLY
    library: Library | None = None
    crop: Range = None
    ratio: Range = None
    rotate: Range = None
    translate: float | None = None
    geometry: GeometryOrder | None = None
    brightness: Range = None
    contrast: Range = None
    saturation: Range = None
    hue: Range = None
    sharpness: Range = None
    colour_probability: float | None = None
    most_operations: int | None = None
    correlated: bool | None = None
    share_cameras: bool | None = None
    without_geometry: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.preset is not None:
            check_choice("preset", self.preset, get_args(Preset))
        preset = _PRESETS.get(self.preset or "", {})
        if self.library not in (None, preset.get("library", self.library)):
            raise ArgumentError(
                f"library={self.library!r:.100} with preset={self.preset!r}, whose amounts are those of "
                f"{preset['library']}; leave one of them out"
            )
        for field in _names():
            if getattr(self, field) is None:
                self._set(**{field: preset.get(field, _DEFAULTS.get(field))})
        check_choice("library", self.library, get_args(Library))
        check_choice("geometry", self.geometry, get_args(GeometryOrder))
        self._set_geometry()
        self._set_colours()
        self._set_draws()

    def _set_geometry(self) -> None:
        self._set(
            crop=_limits("crop", self.crop, 0.01, 1.0),
            ratio=_limits("ratio", self.ratio, 0.1, 10.0),
            rotate=_limits("rotate", self.rotate, -180.0, 180.0, centre=0.0),
            translate=_number("translate", self.translate, 0.0, 1.0),
        )

    def _set_colours(self) -> None:
        neutral = NEUTRAL[str(self.library)]
        for name in _COLOURS:
            amounts = getattr(self, name)
            if name not in neutral:
                if amounts is not None:
                    raise ArgumentError(f"{name}={amounts!r:.100}: {self.library} does not change it; leave it out")
                continue
            centre = neutral[name]
            if amounts is None:
                self._set(**{name: [centre, centre]})
                continue
            least, most = (0.0, _MOST_FACTOR) if centre else (-_MOST_OFFSET.get(name, 1.0), _MOST_OFFSET.get(name, 1.0))
            self._set(**{name: _limits(name, amounts, least, most, centre=centre)})

    def _set_draws(self) -> None:
        for name in ("correlated", "share_cameras"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name}={getattr(self, name)!r:.100}; expected True or False")
        self._set(colour_probability=_number("colour_probability", self.colour_probability, 0.0, 1.0))
        if self.most_operations is not None:
            count = check_whole_number("most_operations", self.most_operations, least=1)
            self._set(most_operations=min(count, _OPERATIONS))
        texts: Any = self.without_geometry
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
            raise ArgumentError(f"without_geometry={texts!r:.100}; expected a list of parts of the names of cameras")
        self._set(without_geometry=list(texts))

    @property
    def colours(self) -> dict[str, tuple[float, float]]:
        """Operations on colours that change something, with their least and most amount, in order."""
        neutral = NEUTRAL[str(self.library)]
        amounts = {name: tuple(getattr(self, name)) for name in neutral}
        return {name: limits for name, limits in amounts.items() if limits != (neutral[name], neutral[name])}

    @property
    def has_geometry(self) -> bool:
        """True if pixels are moved."""
        geometry = (self.crop, self.ratio, self.rotate, self.translate)
        return geometry != ([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], 0.0)

    @property
    def operations(self) -> list[str]:
        """Operations that change something, in order; crop, rotation and translation together are ``geometry``."""
        geometry = ["geometry"] * self.has_geometry
        return [*geometry, *self.colours] if self.geometry == "first" else [*self.colours, *geometry]

    def chosen(self) -> dict[str, Any]:
        """Return the preset, and the fields that differ from its own or the defaults."""
        base = Augment(self.preset) if self.preset else Augment(library=self.library)
        changed = {name: value for name in _names() if (value := getattr(self, name)) != getattr(base, name)}
        if self.preset is not None:
            return {"preset": self.preset, **changed}
        return changed if self.library == _DEFAULTS["library"] else {"library": self.library, **changed}

    def to_json(self) -> dict[str, Any]:
        """Return all fields: a file or state keeps its numbers if a later version has another preset."""
        values = {name: getattr(self, name) for name in _names()}
        return {name: value for name, value in values.items() if value is not None}


def _names() -> list[str]:
    return [field.name for field in fields(Augment)]


def _number(argument: str, value: Any, least: float, most: float) -> float:
    """Return a number within limits; raise ArgumentError if it is none."""
    is_number = hasattr(value, "__float__") and not isinstance(value, bool | str)
    if not is_number or not least <= float(value) <= most:
        raise ArgumentError(f"{argument}={value!r:.100}; expected a number from {least:g} to {most:g}")
    return float(value)


def _limits(argument: str, value: Any, least: float, most: float, *, centre: float | None = None) -> list[float]:
    """Return a range as [least, most].

    Args:
        argument: Name of the field.
        value: (least, most), or a number: the distance from the centre, or the value itself without a centre.
        least, most: Limits.
        centre: Neutral amount.
    """
    if isinstance(value, list | tuple) and len(value) == 2:
        low, high = (_number(argument, end, least, most) for end in value)
        if low > high:
            raise ArgumentError(f"{argument}={value!r:.100}; expected (least, most)")
        return [low, high]
    is_number = hasattr(value, "__float__") and not isinstance(value, bool | str)
    if not is_number or not math.isfinite(float(value)):
        raise ArgumentError(f"{argument}={value!r:.100}; expected a number, or (least, most)")
    if centre is None:
        return [_number(argument, value, least, most)] * 2
    distance = _number(argument, value, 0.0, min(centre - least, most - centre))
    # Without the rounding 1 - 0.9 is 0.09999999999999998.
    return [round(centre - distance, 12), round(centre + distance, 12)]
