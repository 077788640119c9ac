"""Options that a conversion inherits from the converted datasets that are its source, unless the command gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from convert.errors import UsageError
from convert.run.request import ConvertRequest
from convert.shard.video import CRF
from convert.source.kinds import is_source, split_source
from convert.source.root.dataset import expand, open_datasets
from stream.format.manifest import Manifest
from stream.format.video import VIDEO_CODECS, VideoCodec


def inherit_options(request: ConvertRequest) -> ConvertRequest:
    """Return the request with the options that it does not give and its converted datasets have.

    Raises UsageError if one does not exist, or if they differ in their layouts, or in sizes if they become one.
    """
    request = expand_datasets(request)
    sources = [_source(name) for name in request.datasets.split(",")]
    if any(kind != "root" for kind, _ in sources):
        return request
    groups = [[dataset.manifest for dataset in open_datasets(path, request.source)] for _, path in sources]
    if request.image_size is None:
        _check_sizes(groups)
    inherited = _stored_options([manifest for group in groups for manifest in group], request)
    return replace(request, **{name: value for name, value in inherited.items() if getattr(request, name) is None})


def expand_datasets(request: ConvertRequest) -> ConvertRequest:
    """Return the request with the datasets of each complete root that it names."""
    dataset_names: list[str] = []
    for name in request.datasets.split(","):
        kind, path = _source(name)
        dataset_names += [f"root:{root}" for root in expand(path, request.source)] if kind == "root" else [name]
    return replace(request, datasets=",".join(dataset_names))


def _source(dataset_name: str) -> tuple[str, str]:
    """Return the kind and path of a name of ``--datasets``, both empty for a dataset of the registry or a file."""
    name = dataset_name.strip()
    return split_source(name) if is_source(name) and not name.endswith((".yaml", ".yml")) else ("", "")


def _check_sizes(groups: Sequence[Sequence[Manifest]]) -> None:
    """Raise UsageError if datasets that become one have frames of different sizes."""
    for group in groups:
        stored_sizes = [manifest.image.get("cameras") or {"frames": manifest.image["sizes"]} for manifest in group]
        for camera in stored_sizes[0]:
            size_lists = [", ".join(sizes.get(camera, {})) for sizes in stored_sizes]
            if len({*filter(None, size_lists)}) > 1:
                raise UsageError(f"--datasets: {camera} have the sizes {' and '.join(size_lists)}; give --image-size")


def _stored_options(manifests: Sequence[Manifest], request: ConvertRequest) -> dict[str, Any]:
    """Return the options with which datasets were converted."""
    layouts = sorted({manifest.layout for manifest in manifests})
    if len(layouts) > 1 and request.layout is None:
        raise UsageError(f"--datasets: they have the layouts {' and '.join(layouts)}; give --layout")
    layout = request.layout or layouts[0]
    options: dict[str, Any] = {"layout": layout, "image_size": "native"}
    if layout == "frames":
        cameras = [name for manifest in manifests for name in manifest.parameters.get("cameras", ("primary",))]
        options["cameras"] = ",".join(dict.fromkeys(cameras))
    else:
        options["frames"] = manifests[0].parameters.get("frames", "endpoints")
    if layouts == [layout]:
        options |= stored_codecs(manifests, request)
    return options


class _VideoCamera(NamedTuple):
    codec: VideoCodec
    gop: int
    crf: int


def stored_codecs(manifests: Sequence[Manifest], request: ConvertRequest) -> dict[str, Any]:
    """Return the codec, ``gop`` and ``crf`` that converted datasets have.

    Raises UsageError if they differ and were not given, or if chunks that pass through have another quality than given.
    """
    options: dict[str, Any] = {}
    if request.codec is None:
        options["codec"] = _common_codec(_codecs_by_camera(manifests), is_pairs=manifests[0].layout == "pairs")
    # Cameras whose codec is requested again.
    videos = [
        _VideoCamera(codec, manifest.parameters["gop"][camera], manifest.parameters["crf"][camera])
        for manifest in manifests
        for camera, codec in manifest.parameters.get("codec", {}).items()
        if codec in VIDEO_CODECS and codec in (request.codec or options["codec"])
    ]
    gops = {video.gop for video in videos}
    if len(gops) > 1 and request.gop is None:
        raise _differing_video("gop", gops)
    if request.crf is None:
        options |= _common_crf(videos)
    if len(gops) == 1:
        options["gop"] = next(iter(gops))
    passing_crfs = {video.crf for video in videos if video.gop == (request.gop or video.gop)}
    if request.crf is not None and request.image_size is None and passing_crfs - {request.crf}:
        raise UsageError(
            f"--crf {request.crf}: chunks of the same codec and --gop pass through as they are, of crf "
            f"{min(passing_crfs)}; give another --gop, by which they are encoded again, or leave --crf out"
        )
    return options


def _codecs_by_camera(manifests: Iterable[Manifest]) -> dict[str, list[str]]:
    """Return the different codecs of each colour camera, in the order of the datasets."""
    codecs: dict[str, dict[str, None]] = {}
    for manifest in manifests:
        parameters = manifest.parameters
        cameras = parameters.get("cameras", [parameters.get("camera", "primary")])
        for camera in sorted(set(cameras) - set(parameters.get("depth", {}))):
            codec = parameters.get("codec", {}).get(camera, "jpeg")
            codecs.setdefault(camera if manifest.layout == "frames" else "of pairs", {})[codec] = None
    return {camera: list(camera_codecs) for camera, camera_codecs in codecs.items()}


def _common_codec(codecs: Mapping[str, Sequence[str]], *, is_pairs: bool) -> str:
    """Return the value of ``--codec`` that keeps the codec of each camera; raises UsageError if a camera has two."""
    for camera, camera_codecs in codecs.items():
        if len(camera_codecs) > 1:
            raise UsageError(
                f"--datasets: camera {camera} is {' and '.join(camera_codecs)}; give --codec, or convert them apart"
            )
    not_jpeg = [f"{camera}:{codec}" for camera, (codec,) in codecs.items() if codec != "jpeg"]
    return "raw" if is_pairs and not_jpeg else ",".join(["jpeg", *not_jpeg])


def _common_crf(videos: Sequence[_VideoCamera]) -> dict[str, int]:
    """Return the quality that is not the default of its codec, if there is one; raises UsageError for several."""
    unusual = {video.crf for video in videos if video.crf != CRF[video.codec]}
    if len(unusual) > 1 or (unusual and any(video.crf == CRF[video.codec] for video in videos)):
        raise _differing_video("crf", {video.crf for video in videos})
    return {"crf": unusual.pop()} if unusual else {}


def _differing_video(option: str, values: Iterable[int]) -> UsageError:
    listed = " and ".join(map(str, sorted(values)))
    return UsageError(f"--datasets: their video has --{option} {listed}; give one, or convert them apart")
