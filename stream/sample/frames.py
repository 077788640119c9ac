"""Choice of the frames of a sample: their steps, cameras and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, get_args

from stream.base.arguments import check_choice, check_probability, check_whole_number
from stream.base.errors import ArgumentError
from stream.base.value_object import ValueObject, known_fields
from stream.format.names import MAX_PIXELS
from stream.sample.augment import Augment
from stream.sample.window import canonical_frames

ImageFit = Literal["stretch", "pad"]
ImageFilter = Literal["area", "lanczos", "bilinear"]
ImageSize = tuple[int, int] | Mapping[str, tuple[int, int]] | None
Edges = Literal["drop", "repeat"]
Decode = Literal["host", "device"]
MissingCamera = Literal["error", "mask"]
Cameras = str | Sequence[str] | Mapping[str, str | Sequence[str]] | None
"""One camera; a list of cameras, whose names are their keys; or keys with one or several cameras to draw from."""


@known_fields
@dataclass(frozen=True, repr=False)
class Frames(ValueObject):
    """Frames of a sample, relative to its step t::

        step             0  1  2  3  4  5  6  7  8  9      an episode of 10 steps
        Frames([-1, 0])        ^  t                        t = 3: frames 2 and 3
        Frames([0, "goal"])       t        ^               a random later step, here 6
        edges="drop"        t from 1 to 9                  t = 0 has no frame -1
        edges="repeat"   t from 0 to 9                     t = 0 takes frame 0 twice, the first with mask False

    Args:
        steps: Frames relative to t: steps (``-1``), seconds by each dataset's rate (``"0.6s"``), a random distance
            (``"1..10"``), or the dataset's ``"offset"``. ``"last"`` is the last step of the episode. ``"goal"`` is a
            random later step of the episode, each with the same probability. ``"goal:geometric:0.99"`` is k steps later
            with a probability that falls by this factor a step, or the last step. By default the frames of a pair.
        cameras: Role or name of a camera (``"wrist"``), whose key is ``frames``; or a list, with a key for each
            (``frames/primary``, ``frames/wrist``). By default the primary camera, or else the first. A depth camera has
            its name or ``depth/<role>``; its key is ``depth``, or ``depth/wrist`` in a list. A mapping
            ``{"exterior": ("left", "right"), "wrist": "wrist"}`` gives the keys. One of several cameras is drawn for
            each sample, again in each epoch.
        size: (height, width) of all frames, resized where they are decoded; or a mapping by camera. By default the
            stored size, which must then be the same in all datasets.
        fit: ``stretch`` to the size, or ``pad`` with black borders, which keeps the aspect ratio.
        filter: ``area``, the mean of the covered pixels; ``lanczos`` or ``bilinear``, with antialiasing. Depth takes
            the nearest value.
        edges: ``drop`` the steps t whose frames do not all exist. ``repeat`` takes every t, and repeats the first or
            last frame of the episode, with mask False. Stored pairs are complete either way.
        times: Whether batches have ``frame_time`` float32 [b, F]: seconds from t to each frame by the dataset's rate,
            NaN without a fixed rate.
        on_missing_camera: ``error`` if no dataset stores a camera, or ``mask``: black frames of ``size``, with mask
            False. A camera that only some datasets store is masked in the others.
        decode: ``host`` decodes JPEGs where the batch is made; ``device`` leaves frames encoded
            (``stream.batch.encoded``) until ``stream.torch.to_device`` decodes them.
        augment: Augmentation after the resize, equal over the frames of a sample: a preset (``"openpi"``, ``"octo"``,
            ``"openvla"``, ``"lerobot"``) or ``stream.Augment(...)``; None for none.
        history_dropout: Probability that a sample loses its history: all frames before t of all cameras are then black,
            with mask False. A range that reaches t (``"-3..0"``) is not history.

    Raises:
        ArgumentError: A value is wrong.

    >>> Frames((-1, 0, "goal"), size=(224, 224), edges="repeat")
    Frames([-1, 0, 'goal'], size=[224, 224], edges='repeat')
    """

    positional: ClassVar[str] = "steps"

    steps: Sequence[int | str] | None = None
    _: KW_ONLY
    cameras: Cameras = None
    size: ImageSize = None
    fit: ImageFit = "stretch"
    filter: ImageFilter = "area"
    edges: Edges = "drop"
    times: bool = False
    on_missing_camera: MissingCamera = "error"
    decode: Decode = "host"
    augment: Augment | str | Mapping[str, Any] | None = None
    history_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_choice("fit", self.fit, get_args(ImageFit))
        check_choice("filter", self.filter, get_args(ImageFilter))
        check_choice("edges", self.edges, get_args(Edges))
        check_choice("on_missing_camera", self.on_missing_camera, get_args(MissingCamera))
        check_choice("decode", self.decode, get_args(Decode))
        if not isinstance(self.times, bool):
            raise ArgumentError(f"times={self.times!r:.100}; expected True or False")
        self._set(
            steps=canonical_frames(self.steps),
            cameras=canonical_cameras(self.cameras),
            size=canonical_size(self.size),
            augment=None if self.augment is None else Augment.of("augment", self.augment),
            history_dropout=check_probability("history_dropout", self.history_dropout),
        )

    @classmethod
    def clip(cls, num_frames: int, *, rate: float, start: float = 0.0, **fields: Any) -> Frames:
        """Return the frames of a clip at a rate, by the nearest step of each dataset, with their times.

        Args:
            num_frames: Count of frames, from 1 to 1,024.
            rate: Frames per second, at most the rate of each dataset.
            start: Seconds from t to the first frame.
            fields: Other fields of ``Frames``.

        Raises:
            ArgumentError: A value is wrong.

        >>> Frames.clip(3, rate=5)
        Frames(['0s', '0.2s', '0.4s'], times=True)
        """
        num_frames = check_whole_number("num_frames", num_frames, least=1)
        for argument, value, least in (("rate", rate, 1e-3), ("start", start, -1e6)):
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= 1e6:
                raise ArgumentError(f"{argument}={value!r:.100}; expected a number from {least:g} to 1e+06")
        seconds = (f"{start + number / rate:.9f}".rstrip("0").rstrip(".") for number in range(min(num_frames, 1025)))
        return cls([f"{time}s" for time in seconds], **{"times": True, **fields})

    @property
    def is_chosen(self) -> bool:
        """True if the caller chose steps, cameras or edges, so that batches have masks of their frames."""
        is_chosen = self.steps is not None or self.cameras is not None or self.edges == "repeat"
        return is_chosen or self.history_dropout > 0

    @property
    def augmentation(self) -> Augment | None:
        """Augmentation of the frames, as an object."""
        return self.augment if isinstance(self.augment, Augment) else None

    @property
    def random_choices(self) -> list[Any]:
        """Steps, cameras, augmentations and dropout that are drawn for each sample."""
        random_steps = [step for step in self.steps or () if str(step).startswith("goal") or ".." in str(step)]
        choices = self.cameras.values() if isinstance(self.cameras, Mapping) else ()
        random_cameras = [names for names in choices if not isinstance(names, str) and len(names) > 1]
        random_steps += [f"history_dropout={self.history_dropout}"] if self.history_dropout else []
        return random_steps + random_cameras + ([self.augment] if self.augment is not None else [])


def check_size(argument: str, size: Any) -> tuple[int, int]:
    """Return a size as (height, width); raise ArgumentError if it is not two integers, or too large.

    >>> check_size("size", [224, 224])
    (224, 224)
    """
    try:
        height, width = (check_whole_number(argument, pixels, least=1) for pixels in size)
    except (TypeError, ValueError):
        height, width = 0, 0
    if not height * width:
        raise ArgumentError(f"{argument}={size!r:.100}; expected (height, width) in pixels")
    if height * width > MAX_PIXELS:
        raise ArgumentError(
            f"{argument}={size!r:.100}; expected (height, width) in pixels, with at most {MAX_PIXELS:,} pixels a frame"
        )
    return height, width


def canonical_size(size: Any) -> list[int] | dict[str, list[int]] | None:
    """Return ``size`` in its JSON form; raise ArgumentError if it is not a size or a mapping of cameras to sizes."""
    if isinstance(size, Mapping) and size:
        return {
            str(camera_name): list(check_size(f"size[{camera_name!r}]", camera_size))
            for camera_name, camera_size in size.items()
        }
    return None if size is None else list(check_size("size", size))


def canonical_cameras(cameras: Any) -> str | list[str] | dict[str, list[str]] | None:
    """Return ``cameras`` in its JSON form.

    Raises:
        ArgumentError: It is neither a text, nor a list of different texts, nor a mapping of texts to texts or lists.

    >>> canonical_cameras({"exterior": ("left", "right"), "wrist": "wrist"})
    {'exterior': ['left', 'right'], 'wrist': ['wrist']}
    """
    if cameras is None or (isinstance(cameras, str) and cameras):
        return cameras
    if isinstance(cameras, Mapping):
        choices = {key: [names] if isinstance(names, str) else names for key, names in cameras.items()}
        if _are_names(list(choices)) and all(map(_are_names, choices.values())):
            return {key: list(names) for key, names in choices.items()}
    elif _are_names(cameras):
        return list(cameras)
    raise ArgumentError(
        f"cameras={cameras!r:.100}; expected the role or name of a camera, a list of different ones, or a mapping of "
        "keys to names or lists of names"
    )


def _are_names(values: Any) -> bool:
    """Return whether a value is a list of different texts."""
    if not isinstance(values, list | tuple) or not values:
        return False
    return all(isinstance(value, str) and value for value in values) and len(set(values)) == len(values)
