"""``pairstream draft KIND:PLACE``: print the registry entry that a dataset makes of itself, to be corrected.

It has all that the data say; comments stand where a person has to decide. ``convert.run --dry-run`` and
``convert.doctor`` go on from there.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before the slow imports.
    from stream.base.arguments import run_program

    run_program("convert.draft")

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from convert.chosen_features import notation
from convert.command import print_result
from convert.errors import SourceError
from convert.registry.registry import Registry
from convert.source.describe import valid_name
from convert.source.features import Feature
from convert.source.kinds import dataset_name, find_source, split_source, suggest_layout
from convert.source.protocol import Source
from stream.base.arguments import Parser, run_command
from stream.storage.remote import is_remote

_MEANING = (
    "quantity: joint_position, ee_position, ee_rotation_euler, gripper, ...; select: some of the values",
    "kind: absolute (measured), target (commanded), displacement or velocity (a change), flag",
)
_UNITS = ("mm", "m")
_LEAST_SIDE = 16
_DEFAULTS = {"quantity": "other", "kind": "absolute"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = Parser(
        prog="pairstream draft",
        description="Print what a dataset says of itself as YAML for --config, with comments where you have to decide.",
        epilog="example:\n  pairstream draft lerobot:/data/mine > mine.yaml\n"
        "  python -m convert.run --config mine.yaml --datasets mine.yaml --output data/mine --dry-run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("dataset", metavar="KIND:PLACE", help="see docs/own-data.md; a path is enough where it tells")
    parser.add_argument("--source", action="append", default=[], help="as in convert.run")
    parser.add_argument("--json", action="store_true", help="print the entry as JSON, without comments")
    parsed = parser.parse_args(arguments)

    def work() -> int:
        roots = [place if is_remote(place) else os.path.abspath(place) for place in parsed.source]
        kind, place = split_source(parsed.dataset)
        text, name = f"{kind}:{place}", dataset_name(kind, place)
        layout = suggest_layout(text, roots)
        source = find_source(text, roots, layout)
        entry = {"source": text, **({"layout": dict(layout)} if layout else {}), **source.entry}
        if not entry["cameras"]:
            pictures = "uint8 [n, height, width, 3], or a list of encoded pictures"
            raise SourceError(f"{text}: has no camera; a camera is a feature of the steps with pictures, {pictures}")
        Registry().describe(name, source.entry)
        if parsed.json:
            print_result(json.dumps({"datasets": {name: entry}}, indent=1))
        else:
            print_result("\n".join(_lines(name, entry, source)))
        return 0

    return run_command(work, path=parsed.dataset, interrupted="interrupted")


def _lines(name: str, entry: Mapping[str, Any], source: Source) -> Iterator[str]:
    """Yield the lines of a YAML file."""
    yield f"# What {entry['source']} says of itself; correct it, then:"
    yield f"#   python -m convert.run --config THIS.yaml --datasets {name} --output DIR --dry-run"
    for remark in source.remarks:
        yield f"# {remark}"
    yield "datasets:"
    yield f"  {name}:"
    for key in ("source", "description", "robot"):
        if key in entry:
            yield f"    {key}: {_flow(entry[key])}"
    if "robot" not in entry:
        yield "    # robot: name of the robot"
    if rate := entry.get("control_frequency"):
        yield f"    control_frequency: {rate:g}  # steps a second"
    else:
        yield "    # control_frequency: steps a second; the data do not say"
    if layout := entry.get("layout"):
        yield "    layout:"
        yield from (f"      {line}" for line in yaml.safe_dump(dict(layout), sort_keys=False).splitlines())
    yield "    # role: primary (one camera), secondary, wrist or other; channels: bgr where red and blue are swapped"
    yield "    cameras:"
    for camera, fields in entry["cameras"].items():
        yield f"      {_flow(camera)}: {_flow(fields)}"
    for depth in (each.name for each in source.features.values() if _may_be_depth(each)):
        fields = f"{{path: {depth}, role: other, kind: depth, unit: {' or '.join(_UNITS)}}}"
        yield f"      # {valid_name(depth.rpartition('/')[2], default='depth')}: {fields}  # if these are depth maps"
    if instruction := entry.get("instruction"):
        yield f"    instruction: {_flow(instruction)}"
    else:
        yield f"    # instruction: {{path: NAME}}; texts are {_few(source, texts=True)}"
    for vector in ("action", "state"):
        if entry.get(vector):
            yield from (f"    # {line}" for line in (_MEANING if vector == "action" else ()))
            yield f"    {vector}:"
            for part in entry[vector]:
                yield f"      - {_flow({**part, **{key: part.get(key, value) for key, value in _DEFAULTS.items()}})}"
        else:
            proposed = _proposed(vector, source)
            yield f"    # {vector}: [{proposed}]; numbers are {_few(source, texts=False)}"
    rest = {key: value for key, value in entry.items() if key in ("quirks", "leave_out", "spaces", "success_path")}
    if rest:
        yield from (f"    {line}" for line in yaml.safe_dump(rest, sort_keys=False).splitlines())


def _proposed(vector: str, source: Source) -> str:
    """Return the part of a vector that the names of features suggest, as YAML."""
    words = r"action|command|cmd|target|control|ctrl" if vector == "action" else r"state|joint|pose|pos|proprio"
    numbers = {each.name: each for each in source.features.values() if each.level == "step" and each.kind == "tensor"}
    for name, feature in numbers.items():
        if feature.dtype != "string" and feature.size and len(feature.shape) == 1 and re.search(words, name.lower()):
            return _flow({"path": name, "dims": feature.size})
    return "{path: NAME, dims: 7}"


def _may_be_depth(feature: Feature) -> bool:
    """Return whether a feature of steps has the form of depth maps: [H, W] or [H, W, 1] of 16 bits or floats."""
    flat = len(feature.shape) == 2 or (len(feature.shape) == 3 and feature.shape[2] == 1)
    large = flat and all(side is None or side >= _LEAST_SIDE for side in feature.shape[:2])
    return feature.level == "step" and large and feature.dtype in ("uint16", "float16", "float32", "float64")


def _few(source: Source, *, texts: bool) -> str:
    found = [
        notation(feature)
        for feature in source.features.values()
        if feature.kind != "image" and (feature.dtype == "string") == texts
    ]
    return ", ".join(found[:12]) + (" ..." if len(found) > 12 else "") if found else "there are none"


def _flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 20, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
