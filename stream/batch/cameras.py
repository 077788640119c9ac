"""Cameras of a batch: the stored camera of each dataset, by name or role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stream.base.errors import ArgumentError, FormatError, closest
from stream.batch.pictures.resize import Resize
from stream.format.video import VIDEO_CODECS, check_decoder, coded_sizes
from stream.sample.frames import Cameras, Frames

if TYPE_CHECKING:
    from stream.format.fields import Fields
    from stream.format.frame import Codec, StoredCamera


@dataclass(frozen=True)
class LoadedCamera:
    """A camera of a batch.

    Attributes:
        suffix: Ending of its keys, such as ``/wrist``, or nothing.
        shape: (height, width) of its frames in pixels.
        stored: Numbers of the stored cameras of each member: none if the member lacks the camera, several if a sample
            takes one of them at random.
        is_depth: True if its frames are depth.
        resize: Rule that gives stored frames this shape; None if they have it.
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
        """Return whether all stored frames of a member are pixels that can be read directly into a batch."""
        return self.codecs(member) == {"raw"} and self.resize is None

    def sizes(self, member: int) -> tuple[tuple[int, int], ...]:
        """Return the sizes of the stored frames of a member, (height, width) in pixels."""
        return tuple({size for source in self.sources[member] for size in source.sizes})

    @property
    def is_drawn(self) -> bool:
        """True if a member has several cameras to draw from."""
        return any(len(indices) > 1 for indices in self.stored)

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


class _Request(NamedTuple):
    """A camera of a batch, as the caller asks for it.

    Attributes:
        key: Name of the camera in arguments, None for the default camera.
        suffix: Ending of its keys.
        camera_names: Names or roles of the stored cameras to draw from.
    """

    key: str | None
    suffix: str
    camera_names: Sequence[str | None]

    @property
    def size_key(self) -> str:
        """Name of the camera in ``size``."""
        return self.key or "primary"


def find_cameras(frames: Frames, fields: Sequence[Fields], dataset_names: Sequence[str]) -> tuple[LoadedCamera, ...]:
    """Find the cameras of a call in the datasets of a mixture.

    Args:
        frames: Cameras, their size, and the rule to resize them.
        fields: Manifest's fields of each member.
        dataset_names: Names of the members.

    Raises:
        ArgumentError: No dataset has a camera, ``size`` names a camera that is not loaded, or the frames of one camera
            have several sizes or are colour and depth.
    """
    cameras, size = frames.cameras, frames.size
    requests = _requests(cameras)
    loaded = []
    for request in requests:
        camera_size = size.get(request.size_key) if isinstance(size, Mapping) else size
        loaded.append(_load_camera(request, fields, dataset_names, size=camera_size, frames=frames))
    keys = [camera.frames for camera in loaded]
    if repeated := [camera_key for camera_key in keys if keys.count(camera_key) > 1]:
        raise ArgumentError(f"cameras={cameras!r:.100}: two of them would have the key {repeated[0]!r}; rename one")
    size_keys = [request.size_key for request in requests]
    for camera_key in size if isinstance(size, Mapping) else ():
        if camera_key not in size_keys:
            hint = closest(camera_key, size_keys, noun="cameras")
            raise ArgumentError(f"size: no camera {camera_key!r} is loaded; {hint}")
    if cameras is not None:
        stored_by_member = zip(*(camera.stored for camera in loaded), strict=True)
        if lacking := [name for name, stored in zip(dataset_names, stored_by_member, strict=True) if not any(stored)]:
            raise ArgumentError(
                f"cameras={cameras!r:.100}: these datasets store none of them: {', '.join(lacking)}; leave the "
                "datasets out, or convert them with `--layout frames --cameras all`"
            )
    _check_video(loaded, dataset_names)
    return tuple(loaded)


def _requests(cameras: Cameras) -> list[_Request]:
    if cameras is None or isinstance(cameras, str):
        return [_Request(cameras, "", [cameras])]
    requests = []
    for key, choice in cameras.items() if isinstance(cameras, Mapping) else zip(cameras, cameras, strict=True):
        camera_names = [choice] if isinstance(choice, str) else choice
        requests.append(_Request(key, f"/{key.removeprefix('depth/')}", camera_names))
    return requests


def _load_camera(
    request: _Request,
    fields: Sequence[Fields],
    dataset_names: Sequence[str],
    *,
    size: Sequence[int] | None,
    frames: Frames,
) -> LoadedCamera:
    stored_cameras = [member.stored_cameras for member in fields]
    index_by_camera = {name: [_index_of(name, stored) for stored in stored_cameras] for name in request.camera_names}
    for camera_name, indices in index_by_camera.items():
        if max(indices) < 0 and not (frames.on_missing_camera == "mask" and size):
            raise _no_camera(camera_name, fields, is_masked=frames.on_missing_camera == "mask")
    # A name and a role may be the same camera.
    member_indices = tuple(
        tuple(dict.fromkeys(index for index in indices if index >= 0))
        for indices in zip(*index_by_camera.values(), strict=True)
    )
    matches = zip(stored_cameras, member_indices, strict=True)
    sources = tuple(tuple(stored[index] for index in indices) for stored, indices in matches)
    is_depth = {source.is_depth for member_sources in sources for source in member_sources}
    if len(is_depth) > 1:
        raise ArgumentError(
            f"cameras: {request.key or 'the first camera'!r} is colour in some datasets and depth in others; name "
            "cameras of one kind, such as 'primary' or 'depth/primary'"
        )
    shape = (size[0], size[1]) if size else _common_shape(request.size_key, sources, dataset_names)
    resize = Resize(frames.fit, frames.filter) if size else None
    return LoadedCamera(request.suffix, shape, member_indices, is_depth == {True}, resize, sources)


def _no_camera(camera_name: str | None, fields: Sequence[Fields], *, is_masked: bool) -> ArgumentError:
    stored = set().union(*(camera.keys for member in fields for camera in member.stored_cameras)) - {""}
    has_pairs = any(member.layout == "pairs" for member in fields)
    hint = "; pairs have one camera, `--layout frames --cameras all` stores all" if has_pairs else ""
    hint = "; on_missing_camera='mask' takes its size from size=" if is_masked else hint
    return ArgumentError(
        f"cameras: no dataset of the mixture stores {camera_name!r}; they store {', '.join(sorted(stored))}{hint}"
    )


def _check_video(cameras: Sequence[LoadedCamera], dataset_names: Sequence[str]) -> None:
    """Raise ArgumentError if video of a member cannot be decoded here, or its sizes cannot be distinguished."""
    for member, dataset_name in enumerate(dataset_names):
        for camera in cameras:
            for codec in filter(camera.codecs(member).__contains__, VIDEO_CODECS):
                check_decoder(codec, by=f"{dataset_name} ({codec})")
                try:
                    coded_sizes(camera.sizes(member))
                except FormatError as error:
                    raise ArgumentError(f"{dataset_name}, {camera.frames}: {error}") from None


def _index_of(camera_name: str | None, stored: Sequence[StoredCamera]) -> int:
    """Return the number of a camera: the first with this name, else the first with this role, else -1."""
    if camera_name is None:
        return max(_index_of("primary", stored), 0)
    for name_or_role in (0, 1):
        for camera_number, camera in enumerate(stored):
            if camera.keys[name_or_role] == camera_name:
                return camera_number
    return -1


def _common_shape(
    camera_name: str, sources: Sequence[Sequence[StoredCamera]], dataset_names: Sequence[str]
) -> tuple[int, int]:
    """Return the size of the stored frames; raise ArgumentError if they have several."""
    sizes = {
        dataset_name: [size for source in member_sources for size in source.sizes]
        for dataset_name, member_sources in zip(dataset_names, sources, strict=True)
        if member_sources
    }
    distinct = {size for member_sizes in sizes.values() for size in member_sizes}
    if len(distinct) != 1:
        listed_sizes = [
            f"{dataset_name} {' '.join(f'{height}x{width}' for height, width in sizes[dataset_name])}"
            for dataset_name in sizes
        ]
        raise ArgumentError(
            f"camera {camera_name!r}: frames of {len(distinct)} sizes cannot make one batch "
            f"({'; '.join(listed_sizes[:8])}); give frames=Frames(size=(height, width)), convert with --image-size "
            "HxW, or load datasets of one size together"
        )
    return distinct.pop()
