"""``pairstream draft KIND:PLACE``: print the registry entry that the files of a dataset declare, to be corrected.

Comments mark what a person has to decide. Check it with ``convert.run --dry-run``.
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
from convert.errors import SourceError, UnknownLayoutError
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
        description="Print what the files of a dataset declare as YAML, with comments where you have to decide.",
        epilog="example:\n  pairstream draft lerobot:/data/mine > mine.yaml\n"
        "  pairstream convert --datasets mine.yaml --output data/mine --dry-run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "dataset", metavar="KIND:PLACE", help="see docs/own-data.md; a path is enough where its content shows the kind"
    )
    parser.add_argument("--source", action="append", default=[], help="as in convert.run")
    parser.add_argument("--json", action="store_true", help="print the entry as JSON, without comments")
    parsed = parser.parse_args(arguments)

    def work() -> int:
        source_roots = [location if is_remote(location) else os.path.abspath(location) for location in parsed.source]
        try:
            source_kind, location = split_source(parsed.dataset)
        except UnknownLayoutError:  # what a draft is for
            source_kind, location = "arrays", os.path.abspath(parsed.dataset)
        source_text, entry_name = f"{source_kind}:{location}", dataset_name(source_kind, location)
        layout = suggest_layout(source_text, source_roots)
        source = find_source(source_text, source_roots, layout)
        yaml_entry = {"source": source_text, **({"layout": dict(layout)} if layout else {}), **source.entry}
        if not yaml_entry["cameras"]:
            expected = (
                "a feature of the steps with pictures, uint8 [n, height, width, 3], or a list of encoded pictures"
            )
            raise SourceError(f"{source_text}: has no camera; a camera is {expected}")
        Registry().describe(entry_name, source.entry)
        if parsed.json:
            print_result(json.dumps({"datasets": {entry_name: yaml_entry}}, indent=1))
        else:
            print_result("\n".join(_lines(entry_name, yaml_entry, source)))
        return 0

    return run_command(work, path=parsed.dataset, interrupted="interrupted")


def _lines(entry_name: str, yaml_entry: Mapping[str, Any], source: Source) -> Iterator[str]:
    """Yield the lines of a YAML file."""
    yield f"# Draft from {yaml_entry['source']}. Correct it, take # away where a line fits, then:"
    yield "#   pairstream convert --datasets THIS.yaml --output DIR --dry-run"
    for remark in source.remarks:
        yield f"# {remark}"
    yield "datasets:"
    yield f"  {entry_name}:"
    for field_name in ("source", "description", "robot"):
        if field_name in yaml_entry:
            yield f"    {field_name}: {_flow(yaml_entry[field_name])}"
    if "robot" not in yaml_entry:
        yield "    # robot: name of the robot"
    if frequency := yaml_entry.get("control_frequency"):
        yield f"    control_frequency: {frequency:g}  # steps a second"
    else:
        yield "    # control_frequency: steps a second; the data do not say"
    if layout := yaml_entry.get("layout"):
        yield "    layout:"
        yield from (f"      {line}" for line in yaml.safe_dump(dict(layout), sort_keys=False).splitlines())
    yield "    # role: primary (one camera), secondary, wrist or other; channels: bgr where red and blue are swapped"
    yield "    cameras:"
    for camera, fields in yaml_entry["cameras"].items():
        yield f"      {_flow(camera)}: {_flow(fields)}"
    for depth_name in (feature.name for feature in source.features.values() if _may_be_depth(feature)):
        fields = f"{{path: {depth_name}, role: other, kind: depth, unit: {' or '.join(_UNITS)}}}"
        camera_name = valid_name(depth_name.rpartition("/")[2], default="depth")
        yield f"      # {camera_name}: {fields}  # if these are depth maps"
    if instruction := yaml_entry.get("instruction"):
        yield f"    instruction: {_flow(instruction)}"
    else:
        yield f"    # instruction: {{path: NAME}}  # texts: {_few(source, are_texts=True)}"
    for vector in ("action", "state"):
        if yaml_entry.get(vector):
            yield from (f"    # {line}" for line in (_MEANING if vector == "action" else ()))
            yield f"    {vector}:"
            for part in yaml_entry[vector]:
                missing_fields = {key: _DEFAULTS[key] for key in _DEFAULTS if key not in part}
                yield f"      - {_flow({**part, **missing_fields})}"
        else:
            proposed = _proposed(vector, source)
            yield f"    # {vector}: [{proposed}]  # numbers: {_few(source, are_texts=False)}"
    remaining_names = ("quirks", "leave_out", "spaces", "success_path")
    if remaining := {name: value for name, value in yaml_entry.items() if name in remaining_names}:
        yield from (f"    {line}" for line in yaml.safe_dump(remaining, sort_keys=False).splitlines())


def _proposed(vector: str, source: Source) -> str:
    """Return the part of a vector that the names of features suggest, as YAML."""
    name_pattern = r"action|command|cmd|target|control|ctrl" if vector == "action" else r"state|joint|pose|pos|proprio"
    for feature in source.features.values():
        is_vector = feature.level == "step" and feature.kind == "tensor" and len(feature.shape) == 1
        is_number = feature.dtype != "string" and feature.size
        if is_vector and is_number and re.search(name_pattern, feature.name.lower()):
            return _flow({"path": feature.name, "dims": feature.size})
    return "{path: NAME, dims: 7}"


def _may_be_depth(feature: Feature) -> bool:
    """Return whether a feature of steps has the form of depth maps: [H, W] or [H, W, 1] of 16 bits or floats."""
    is_flat = len(feature.shape) == 2 or (len(feature.shape) == 3 and feature.shape[2] == 1)
    is_large = is_flat and all(frame_side is None or frame_side >= _LEAST_SIDE for frame_side in feature.shape[:2])
    return feature.level == "step" and is_large and feature.dtype in ("uint16", "float16", "float32", "float64")


def _few(source: Source, *, are_texts: bool) -> str:
    features = [feature for feature in source.features.values() if feature.kind != "image"]
    names = [notation(feature) for feature in features if (feature.dtype == "string") == are_texts]
    return (", ".join(names[:12]) or "there are none") + (" ..." if len(names) > 12 else "")


def _flow(yaml_value: Any) -> str:
    """Return a value as YAML in one line."""
    yaml_text: str = yaml.safe_dump(
        yaml_value, default_flow_style=True, sort_keys=False, width=1 << 20, allow_unicode=True
    )
    return yaml_text.removesuffix("\n").removesuffix("\n...")
