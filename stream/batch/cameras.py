"""Cameras of a batch: the stored camera of each dataset, by name or role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stream.storage.errors import ArgumentError

if TYPE_CHECKING:
    from stream.format.fields import Fields, StoredCamera
    from stream.format.frame import Codec


@dataclass(frozen=True)
class LoadedCamera:
    """A camera of a batch.

    Attributes:
        suffix: Ending of its keys: nothing, or ``/wrist``.
        shape: (height, width) of its frames in pixels.
        stored: Number of the camera among the stored ones of each member, -1 where a member lacks it.
        is_depth: Whether its frames are depth.
        codecs: Codec of its frames of colour, by member.
    """

    suffix: str
    shape: tuple[int, int]
    stored: tuple[int, ...]
    is_depth: bool = False
    codecs: tuple[Codec, ...] = ()

    @property
    def frames(self) -> str:
        """Key of its frames."""
        return f"{'depth' if self.is_depth else 'frames'}{self.suffix}"

    @property
    def mask(self) -> str:
        """Key of the mask of its frames."""
        return f"{'depth' if self.is_depth else 'frames'}_mask{self.suffix}"

    @property
    def field(self) -> tuple[str, tuple[int, ...]]:
        """dtype and shape of one frame."""
        return ("u2", self.shape) if self.is_depth else ("u1", (*self.shape, 3))


def canonical_cameras(cameras: Any) -> str | list[str] | None:
    """Return the ``cameras`` argument in its JSON form.

    Raises:
        ArgumentError: It is neither a text nor a list of different texts.
    """
    if cameras is None or (isinstance(cameras, str) and cameras):
        return cameras
    is_list = isinstance(cameras, list | tuple) and all(isinstance(each, str) and each for each in cameras)
    if not is_list or not cameras or len(set(cameras)) < len(cameras):
        raise ArgumentError(
            f"cameras={cameras!r:.100}; expected the role or name of a camera, or a list of different ones"
        )
    return list(cameras)


def find_cameras(
    cameras: str | Sequence[str] | None, fields: Sequence[Fields], names: Sequence[str]
) -> tuple[LoadedCamera, ...]:
    """Find cameras in the datasets of a mixture.

    Args:
        cameras: One role or name, whose key is ``frames``; or several, with keys such as ``frames/wrist``; None takes
            the primary camera of each dataset, or its first one. ``depth/`` in front of a role asks for depth, whose
            keys are ``depth`` and such as ``depth/wrist``.
        fields: Manifest's fields of each member.
        names: Names of the members.

    Raises:
        ArgumentError: No dataset has a camera, or the frames of one have several sizes or are colour and depth.
    """
    wanted = [cameras] if cameras is None or isinstance(cameras, str) else list(cameras)
    stored = [each.stored_cameras for each in fields]
    loaded = []
    for camera in wanted:
        numbers = tuple(_find(camera, each) for each in stored)
        if max(numbers) < 0:
            known = sorted({name for each in stored for one in each for name in one.keys if name})
            hint = "; pairs have one camera, `--layout frames --cameras all` stores all"
            hint = hint if any(each.layout == "pairs" for each in fields) else ""
            raise ArgumentError(
                f"cameras: no dataset of the mixture stores {camera!r}; they store {', '.join(known)}{hint}"
            )
        suffix = "" if camera is None or isinstance(cameras, str) else f"/{camera.removeprefix('depth/')}"
        kinds = {each[number].is_depth for each, number in zip(stored, numbers, strict=True) if number >= 0}
        if len(kinds) > 1:
            raise ArgumentError(
                f"cameras: {camera or 'the first camera'!r} is colour in some datasets and depth in others; name "
                "cameras of one kind, such as 'primary' or 'depth/primary'"
            )
        shape = _shape(camera or "primary", numbers, stored, names)
        codecs = tuple(each[max(number, 0)].codec for each, number in zip(stored, numbers, strict=True))
        loaded.append(LoadedCamera(suffix, shape, numbers, kinds.pop(), codecs))
    if cameras is not None:
        missing = [name for member, name in enumerate(names) if all(each.stored[member] < 0 for each in loaded)]
        if missing:
            raise ArgumentError(
                f"cameras={cameras!r:.100}: these datasets store none of them: {', '.join(missing)}; leave the "
                "datasets out, or convert them with `--layout frames --cameras all`"
            )
    return tuple(loaded)


def _find(camera: str | None, stored: Sequence[StoredCamera]) -> int:
    """Return the number of a camera: the first with this name, else the first with this role, else -1."""
    if camera is None:
        return max(_find("primary", stored), 0)
    for key in (0, 1):
        for number, each in enumerate(stored):
            if each.keys[key] == camera:
                return number
    return -1


def _shape(
    camera: str, numbers: Sequence[int], stored: Sequence[Sequence[StoredCamera]], names: Sequence[str]
) -> tuple[int, int]:
    sizes = {name: each[number].sizes for name, each, number in zip(names, stored, numbers, strict=True) if number >= 0}
    found = {size for several in sizes.values() for size in several}
    if len(found) != 1:
        texts = {name: " ".join(f"{height}x{width}" for height, width in several) for name, several in sizes.items()}
        listed = "; ".join(f"{name} {text}" for name, text in list(texts.items())[:8])
        raise ArgumentError(
            f"camera {camera!r}: frames of {len(found)} sizes cannot make one batch ({listed}); convert with "
            "--image-size HxW, leave the camera out, or load datasets of one size together"
        )
    return found.pop()
