"""Cameras of a batch: the stored camera of each dataset, by name or role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stream.base.errors import ArgumentError, FormatError, closest
from stream.batch.resize import ImageSize, Resize
from stream.format.video import VIDEO_CODECS, check_decoder, coded_sizes

if TYPE_CHECKING:
    from stream.format.fields import Fields
    from stream.format.frame import Codec, StoredCamera


@dataclass(frozen=True)
class LoadedCamera:
    """A camera of a batch.

    Attributes:
        suffix: Ending of its keys: nothing, or ``/wrist``.
        shape: (height, width) of its frames in pixels.
        stored: Numbers of the camera among the stored ones of each member: none where a member lacks it, several where
            a sample takes one of them at random.
        is_depth: Whether its frames are depth.
        resize: How stored frames get this shape; None if they have it.
        sources: The stored cameras of ``stored``, by member.
    """

    suffix: str
    shape: tuple[int, int]
    stored: tuple[tuple[int, ...], ...]
    is_depth: bool = False
    resize: Resize | None = None
    sources: tuple[tuple[StoredCamera, ...], ...] = ()

    def codecs(self, member: int) -> set[Codec]:
        """Return the codecs of the frames of colour of a member."""
        return {source.codec for source in self.sources[member] if not source.is_depth}

    def is_read_raw(self, member: int) -> bool:
        """Return whether all stored frames of a member are pixels that can be read right into a batch."""
        return self.codecs(member) == {"raw"} and self.resize is None

    def sizes(self, member: int) -> tuple[tuple[int, int], ...]:
        """Return the sizes of the stored frames of a member, (height, width) in pixels."""
        return tuple({size for source in self.sources[member] for size in source.sizes})

    @property
    def is_drawn(self) -> bool:
        """True if a member has several cameras to draw from."""
        return any(len(own) > 1 for own in self.stored)

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


Cameras = str | Sequence[str] | Mapping[str, str | Sequence[str]] | None
"""One camera; several, whose names are their keys; or keys with a camera or several to draw from."""


def canonical_cameras(cameras: Any) -> str | list[str] | dict[str, list[str]] | None:
    """Return the ``cameras`` argument in its JSON form.

    Raises:
        ArgumentError: It is neither a text, nor a list of different texts, nor a mapping of texts to these.

    >>> canonical_cameras({"exterior": ("left", "right"), "wrist": "wrist"})
    {'exterior': ['left', 'right'], 'wrist': ['wrist']}
    """
    if cameras is None or (isinstance(cameras, str) and cameras):
        return cameras
    if isinstance(cameras, Mapping):
        found = {key: [own] if isinstance(own, str) else own for key, own in cameras.items()}
    else:
        found = {"": cameras}
    is_right = all(isinstance(own, list | tuple) and own and _are_names(own) for own in found.values())
    if not found or not is_right or not _are_names([*found, "name"] if isinstance(cameras, Mapping) else ["name"]):
        raise ArgumentError(
            f"cameras={cameras!r:.100}; expected the role or name of a camera, a list of different ones, or a mapping "
            "of keys to these"
        )
    return {key: list(own) for key, own in found.items()} if isinstance(cameras, Mapping) else list(cameras)


def _are_names(texts: Sequence[Any]) -> bool:
    return all(isinstance(each, str) and each for each in texts) and len(set(texts)) == len(texts)


def find_cameras(
    cameras: Cameras,
    fields: Sequence[Fields],
    names: Sequence[str],
    *,
    size: ImageSize = None,
    resize: Resize | None = None,
) -> tuple[LoadedCamera, ...]:
    """Find cameras in the datasets of a mixture.

    Args:
        cameras: One role or name, whose key is ``frames``; or several, with keys such as ``frames/wrist``; None takes
            the primary camera of each dataset, or its first one. ``depth/`` in front of a role asks for depth, whose
            keys are ``depth`` and such as ``depth/wrist``. A mapping gives keys, and one or several cameras to draw
            from.
        fields: Manifest's fields of each member.
        names: Names of the members.
        size: Height and width of all frames, or by camera, as ``cameras`` names them; others keep their stored size.
        resize: How frames get this size.

    Raises:
        ArgumentError: No dataset has a camera, ``size`` names one that is not loaded, or the frames of one have several
            sizes or are colour and depth.
    """
    wanted: list[tuple[str | None, Sequence[str | None]]]
    if isinstance(cameras, Mapping):
        wanted = [(key, [own] if isinstance(own, str) else own) for key, own in cameras.items()]
    else:
        wanted = [(each, [each]) for each in ([cameras] if cameras is None or isinstance(cameras, str) else cameras)]
    stored = [each.stored_cameras for each in fields]
    loaded = []
    for key, several in wanted:
        found = {camera: [_find(camera, each) for each in stored] for camera in several}
        for camera, own in found.items():
            if max(own) < 0:
                known = sorted({name for each in stored for one in each for name in one.keys if name})
                hint = "; pairs have one camera, `--layout frames --cameras all` stores all"
                hint = hint if any(each.layout == "pairs" for each in fields) else ""
                raise ArgumentError(
                    f"cameras: no dataset of the mixture stores {camera!r}; they store {', '.join(known)}{hint}"
                )
        # A name and a role may be the same camera.
        numbers = tuple(tuple(dict.fromkeys(n for n in own if n >= 0)) for own in zip(*found.values(), strict=True))
        suffix = "" if key is None or isinstance(cameras, str) else f"/{key.removeprefix('depth/')}"
        kinds = {each[number].is_depth for each, own in zip(stored, numbers, strict=True) for number in own}
        if len(kinds) > 1:
            raise ArgumentError(
                f"cameras: {key or 'the first camera'!r} is colour in some datasets and depth in others; name "
                "cameras of one kind, such as 'primary' or 'depth/primary'"
            )
        own_size = size.get(key or "primary") if isinstance(size, Mapping) else size
        shape = (own_size[0], own_size[1]) if own_size else _shape(key or "primary", numbers, stored, names)
        sources = tuple(tuple(each[n] for n in own) for each, own in zip(stored, numbers, strict=True))
        loaded.append(LoadedCamera(suffix, shape, numbers, kinds.pop(), resize if own_size else None, sources))
    keys = [each.frames for each in loaded]
    if again := [key for key in keys if keys.count(key) > 1]:
        raise ArgumentError(f"cameras={cameras!r:.100}: two of them would have the key {again[0]!r}; rename one")
    known_keys = [key or "primary" for key, _ in wanted]
    for name in size if isinstance(size, Mapping) else ():
        if name not in known_keys:
            raise ArgumentError(
                f"image_size: no camera {name!r} is loaded; {closest(name, known_keys, noun='cameras')}"
            )
    if cameras is not None:
        missing = [name for member, name in enumerate(names) if not any(each.stored[member] for each in loaded)]
        if missing:
            raise ArgumentError(
                f"cameras={cameras!r:.100}: these datasets store none of them: {', '.join(missing)}; leave the "
                "datasets out, or convert them with `--layout frames --cameras all`"
            )
    _check_video(loaded, names)
    return tuple(loaded)


def _check_video(loaded: Sequence[LoadedCamera], names: Sequence[str]) -> None:
    """Raise ArgumentError if video of a member cannot be decoded here, or its sizes cannot be told apart."""
    for member, name in enumerate(names):
        for camera in loaded:
            for codec in filter(camera.codecs(member).__contains__, VIDEO_CODECS):
                check_decoder(codec, by=f"{name} ({codec})")
                try:
                    coded_sizes(camera.sizes(member))
                except FormatError as error:
                    raise ArgumentError(f"{name}, {camera.frames}: {error}") from None


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
    camera: str, numbers: Sequence[Sequence[int]], stored: Sequence[Sequence[StoredCamera]], names: Sequence[str]
) -> tuple[int, int]:
    sizes = {
        name: [size for number in own for size in each[number].sizes]
        for name, each, own in zip(names, stored, numbers, strict=True)
        if own
    }
    found = {size for several in sizes.values() for size in several}
    if len(found) != 1:
        texts = {name: " ".join(f"{height}x{width}" for height, width in several) for name, several in sizes.items()}
        listed = "; ".join(f"{name} {text}" for name, text in list(texts.items())[:8])
        raise ArgumentError(
            f"camera {camera!r}: frames of {len(found)} sizes cannot make one batch ({listed}); give "
            "image_size=(height, width), convert with --image-size HxW, or load datasets of one size together"
        )
    return found.pop()
