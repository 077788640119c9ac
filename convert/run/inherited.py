"""Options that a conversion has from converted datasets that are its source, where the command does not say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from convert.errors import UsageError
from convert.shard.video import CRF
from convert.source.kinds import is_source, split_source
from convert.source.root.dataset import expand, open_datasets
from stream.format.manifest import Manifest
from stream.format.video import VIDEO_CODECS


def fill_in(arguments: argparse.Namespace) -> None:
    """Fill in what was not given: for converted datasets what they have, which is looked up.

    Raises:
        UsageError: A converted dataset is not there, or they differ in their layouts, or in sizes if they become one.
    """
    found: dict[str, Any] = {"layout": "pairs", "image_size": "256", "frames": "endpoints", "codec": "jpeg"}
    names = [name.strip() for name in arguments.datasets.split(",")]
    sources = [split_source(name) for name in names if is_source(name) and not name.endswith((".yaml", ".yml"))]
    if any(kind == "root" for kind, _ in sources):
        names = [each for name in names for each in _expanded(name, arguments.source)]
        arguments.datasets = ",".join(names)
        sources = [split_source(name) for name in names if is_source(name)]
    if len(sources) == len(names) and all(kind == "root" for kind, _ in sources):
        groups = [[each.manifest for each in open_datasets(place, arguments.source)] for _, place in sources]
        if arguments.image_size is None:
            _check_sizes(groups)
        manifests = [manifest for group in groups for manifest in group]
        layouts = sorted({manifest.layout for manifest in manifests})
        if len(layouts) > 1 and arguments.layout is None:
            raise UsageError(f"--datasets: they have the layouts {' and '.join(layouts)}; give --layout")
        layout = arguments.layout or layouts[0]
        found |= {"layout": layout, "image_size": "native"}
        if layout == "frames":
            found["cameras"] = ",".join(
                dict.fromkeys(name for each in manifests for name in each.parameters.get("cameras", ("primary",)))
            )
        else:
            found["frames"] = manifests[0].parameters.get("frames", "endpoints")
        if layouts == [layout]:
            found |= _codecs(manifests, arguments)
    for name, value in found.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def _expanded(name: str, roots: Sequence[str]) -> list[str]:
    """Return a name of ``--datasets``, or the datasets of the whole roots that it names."""
    kind, place = split_source(name) if is_source(name) else ("", "")
    return [f"root:{each}" for each in expand(place, roots)] if kind == "root" else [name]


def _check_sizes(groups: Sequence[Sequence[Manifest]]) -> None:
    """Raise UsageError if datasets that become one have frames of different sizes."""
    for group in groups:
        stored = [each.image.get("cameras") or {"frames": each.image["sizes"]} for each in group]
        for camera in stored[0]:
            sizes = [", ".join(each.get(camera, {})) for each in stored]
            if len({*filter(None, sizes)}) > 1:
                raise UsageError(f"--datasets: {camera} have the sizes {' and '.join(sizes)}; give --image-size")


def _codecs(manifests: Sequence[Manifest], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the codec, ``gop`` and ``crf`` that converted datasets have.

    Raises:
        UsageError: They differ and were not given, or chunks that pass through have another quality than the one given.
    """
    codecs: dict[str, dict[str, None]] = {}
    for each in manifests:
        own = each.parameters.get("codec", {})
        names = each.parameters.get("cameras", [each.parameters.get("camera", "primary")])
        for name in sorted(set(names) - set(each.parameters.get("depth", {}))):
            codecs.setdefault(name if each.layout == "frames" else "of pairs", {})[own.get(name, "jpeg")] = None
    found: dict[str, Any] = {}
    if arguments.codec is None:
        for name, several in codecs.items():
            if len(several) > 1:
                raise UsageError(
                    f"--datasets: camera {name} is {' and '.join(several)}; give --codec, or convert them apart"
                )
        others = [f"{name}:{codec}" for name, (codec,) in codecs.items() if codec != "jpeg"]
        is_pairs = manifests[0].layout == "pairs"
        found["codec"] = "raw" if is_pairs and others else ",".join(["jpeg", *others])
    wanted = arguments.codec or found["codec"]
    video = [
        (codec, each.parameters["gop"][name], each.parameters["crf"][name])
        for each in manifests
        for name, codec in each.parameters.get("codec", {}).items()
        if codec in VIDEO_CODECS and codec in wanted
    ]
    gops, crfs = {gop for _, gop, _ in video}, {crf for codec, _, crf in video if crf != CRF[codec]}
    usual = any(crf == CRF[codec] for codec, _, crf in video)
    if len(gops) > 1 and arguments.gop is None:
        raise UsageError(
            f"--datasets: their video has --gop {' and '.join(map(str, sorted(gops)))}; give one, or convert them apart"
        )
    if crfs and arguments.crf is None:
        if len(crfs) > 1 or usual:
            told = " and ".join(map(str, sorted({crf for _, _, crf in video})))
            raise UsageError(f"--datasets: their video has --crf {told}; give one, or convert them apart")
        found["crf"] = crfs.pop()
    if len(gops) == 1:
        found["gop"] = next(iter(gops))
    stay = {crf for _, gop, crf in video if gop == (arguments.gop or gop)}
    if arguments.crf is not None and arguments.image_size is None and stay - {arguments.crf}:
        raise UsageError(
            f"--crf {arguments.crf}: chunks of the same codec and --gop pass through as they are, of crf {min(stay)}; "
            "give another --gop, by which they are encoded again, or leave --crf out"
        )
    return found
