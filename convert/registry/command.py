"""``pairstream registry``: print the table of docs/from-data-to-a-policy.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from convert.command import print_result, split_names
from convert.registry.dataset import DatasetSpec, Part, motion_of
from convert.registry.registry import load_registry
from stream.base.arguments import Parser, run_command

_HEADS = (
    *("dataset, robot, Hz", "cameras", "action as stored", "state as stored"),
    *("spaces", "action's gripper", "not known", "licence"),
)


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
        description="Print a table of the datasets of the registry in Markdown.",
        allow_abbrev=False,
    )
    parser.add_argument("--datasets", help="only these, with commas between (default: all)")
    parser.add_argument("--config", action="append", default=[], help="YAML with further datasets; may be repeated")
    parsed = parser.parse_args(arguments)

    def work() -> int:
        registry = load_registry(config=parsed.config)
        dataset_names = split_names(parsed.datasets) or registry.datasets
        print_result(to_markdown(registry.dataset(name) for name in dataset_names))
        return 0

    return run_command(work, path="registry", interrupted="interrupted")
