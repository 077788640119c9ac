"""``pairstream registry``: print the facts of datasets for people, or the table of docs/from-data-to-a-policy.md."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence

from convert.command import print_result, split_names
from convert.registry.dataset import DatasetSpec, Part, motion_of
from convert.registry.registry import load_registry
from stream.base.arguments import Parser, run_command

_HEADS = (
    *("dataset, robot, Hz", "cameras", "action as stored", "state as stored"),
    *("spaces", "action's gripper", "not known", "licence"),
)


_WIDEST = 100
"""Columns of a text for people: longer lines are hard to read."""


def to_text(datasets: Iterable[DatasetSpec], *, width: int = _WIDEST) -> str:
    """Return a block for each dataset, with lines of at most ``width`` columns and all that ``to_markdown`` has."""
    indent = max(map(len, _HEADS[1:])) + 4
    blocks = []
    for spec in datasets:
        name, *columns = _row(spec)
        lines = [name.replace("`", "") + (" Hz" if spec.control_frequency else "")]
        for head, cell in zip(_HEADS[1:], columns, strict=True):
            # **eef** and its remark in Markdown
            plain_cell = re.sub(r"\*\*(\w+)\*\* ", r"\1: ", cell).replace("**", "")
            for number, text in enumerate(plain_cell.split("<br>")):
                label = f"  {head if number == 0 else ''}".ljust(indent)
                hanging = " " * (indent + 2)
                lines += textwrap.wrap(
                    text, width, initial_indent=label, subsequent_indent=hanging, break_on_hyphens=False
                )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def to_markdown(datasets: Iterable[DatasetSpec]) -> str:
    """Return a table with one row for each dataset."""
    table_rows = [_HEADS, ["---"] * len(_HEADS), *map(_row, datasets)]
    return "\n".join(f"| {' | '.join(row)} |" for row in table_rows)


def _row(spec: DatasetSpec) -> list[str]:
    rate_text = "no fixed rate" if spec.control_frequency is None else f"{spec.control_frequency:g}"
    cameras = [
        name if camera.role == "other" and not camera.is_depth else f"{name} ({camera.keys(name)[1]})"
        for name, camera in spec.cameras.items()
    ]
    text_parts = [f"text: {spec.action_text}"] if spec.action_text else []
    license_, _, source = (spec.license or "unknown").partition(" [")
    return [
        f"`{spec.name}`, {spec.robot or 'several robots'}, {rate_text}",
        "<br>".join(cameras),
        "<br>".join([*map(_describe, spec.action), *text_parts]) or "none",
        "<br>".join(map(_describe, spec.state)) or "none",
        "<br>".join(_spaces(spec)),
        "<br>".join(_grippers(spec.action)) or "none",
        "<br>".join(_unknown(spec)) or "nothing",
        f"{license_} ({source.rstrip(']')})" if source else license_.partition(":")[0],
    ]


def _describe(part: Part) -> str:
    unit_text: str | None = part.unit
    if part.unit == "normalised" and part.scale:
        unit_text = f"1 is {part.scale:g} {'m' if part.quantity == 'ee_position' else 'rad'}"
    facts = [part.kind, unit_text, part.frame and f"{part.frame} frame", part.order]
    known_facts = ", ".join(fact for fact in facts if fact and not fact.startswith("unknown"))
    return f"{part.dims} {part.quantity}: {known_facts}"


def _spaces(spec: DatasetSpec) -> list[str]:
    descriptions = []
    for space_name, space in spec.spaces.items():
        remarks = [
            space.unmapped and f"no: {space.unmapped}",
            space.follows and f"as {space.follows}",
            space.unknown_units and f"unknown units: {', '.join(space.unknown_units)}",
            space.note,
        ]
        descriptions.append(f"**{space_name}** {'; '.join(remark for remark in remarks if remark)}".rstrip())
    return [*descriptions, f"**motion** {motion_of(spec.action, spec.state).source}"]


def _grippers(vector_parts: Sequence[Part]) -> list[str]:
    descriptions = []
    for part in vector_parts:
        if part.quantity == "gripper" and part.kind != "flag":
            gripper = part.gripper
            open_word, closed_word = ("opens", "closes") if gripper and gripper.relative else ("open", "closed")
            ends = f"{gripper.open:g} {open_word}, {gripper.closed:g} {closed_word}" if gripper else "unknown"
            descriptions.append(ends)
    return descriptions


def _unknown(spec: DatasetSpec) -> list[str]:
    """Return the facts that no source has, with the quantities that lack them."""
    parts_by_fact: dict[str, list[str]] = {}
    for vector, vector_parts in (("action", spec.action), ("state", spec.state)):
        for part in vector_parts:
            for fact in part.facts:
                if getattr(part, fact) in (None, "unknown"):
                    part_name = f"{vector} {part.quantity.removeprefix('ee_')}"
                    parts_by_fact.setdefault({"order": "rotation order"}.get(fact, fact), []).append(part_name)
    if any(camera.unit == "unknown" for camera in spec.cameras.values()):
        parts_by_fact.setdefault("unit", []).append("depth")
    return [f"{fact}: {', '.join(dict.fromkeys(vector_parts))}" for fact, vector_parts in parts_by_fact.items()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = Parser(
        prog="pairstream registry",
        description="Print the facts of the datasets of the registry, with their licences and what nobody knows.",
        allow_abbrev=False,
    )
    parser.add_argument("--datasets", help="only these, with commas between (default: all)")
    parser.add_argument("--config", action="append", default=[], help="YAML with further datasets; may be repeated")
    parser.add_argument("--markdown", action="store_true", help="print one table in Markdown, with very long rows")
    parsed = parser.parse_args(arguments)

    def work() -> int:
        registry = load_registry(config=parsed.config)
        specs = [registry.dataset(name) for name in split_names(parsed.datasets) or registry.datasets]
        width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
        print_result(to_markdown(specs) if parsed.markdown else to_text(specs, width=width))
        return 0

    return run_command(work, path="registry", interrupted="interrupted")
