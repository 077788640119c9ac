"""The outcome of a run: printed for people or as JSON, and turned into the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convert.command import print_result
from convert.errors import EXIT_DAMAGED, EXIT_FAILED
from convert.run.report import RESULT_COLUMNS, describe_content, describe_failed, format_missing, format_rows, summarise
from convert.run.request import ConvertRequest
from convert.run.status import ConversionStatus
from convert.shard.counts import BROKEN_FILE, count_damage
from stream.format.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a run for each dataset.

    Attributes:
        missing: Datasets with shards that no task has finished, only with ``finalize``; see ``describe_missing``.
        empty: Error about each dataset with a split that gives no record, by name.
        manifests: Other datasets with their manifest, None for a dataset that other tasks have not finished.
        counters: Sums that the runner counted, None if it counts nothing.
    """

    missing: Sequence[Mapping[str, Any]]
    empty: Mapping[str, str]
    manifests: Sequence[tuple[ConversionStatus, Manifest | None]]
    counters: Mapping[str, int] | None

    @property
    def waiting(self) -> list[str]:
        """Names of the datasets that other tasks have not finished."""
        return [status.name for status, manifest in self.manifests if manifest is None]

    @property
    def complete(self) -> list[tuple[ConversionStatus, Manifest]]:
        """Datasets that are complete."""
        return [(status, manifest) for status, manifest in self.manifests if manifest and manifest.records]


def print_outcome(outcome: Outcome, request: ConvertRequest) -> None:
    """Print the result of each dataset, and warnings about its content."""
    result_rows = [
        summarise(manifest, output=status.conversion.target, num_converted=len(status.pending_jobs))
        for status, manifest in outcome.complete
    ]
    if request.json:
        result = {"complete": result_rows, "waiting": outcome.waiting, "counters": outcome.counters}
        print_result(
            json.dumps(result | ({"missing": outcome.missing} if request.command == "finalize" else {}), indent=1)
        )
    else:
        text_lines = [format_rows(RESULT_COLUMNS, result_rows)] if result_rows else []
        num_before = sum(status.complete for status, _ in outcome.manifests)
        if result_rows and num_before:
            num_datasets = len(outcome.manifests) + len(outcome.empty)
            text_lines.append(f"{num_before} of {num_datasets} were complete already")
        if text_lines or outcome.missing:
            print_result("\n".join([*text_lines, *map(format_missing, outcome.missing)]))
    for _, manifest in outcome.complete:
        for warning in describe_content(manifest):
            print(f"warning: {warning}", file=sys.stderr)


def exit_code(outcome: Outcome, request: ConvertRequest) -> int:
    """Return the exit code, after an error about each dataset that is not complete or has damage."""
    failed = [(status, manifest) for status, manifest in outcome.manifests if manifest and not manifest.records]
    errors = [*outcome.empty.values(), *(describe_failed(status, manifest) for status, manifest in failed)]
    if outcome.missing and not errors:
        shard_counts = [
            f"{row['dataset']} ({len(row['missing']):,} of {row['shards']:,} shards)" for row in outcome.missing
        ]
        errors = [
            f"not complete, shards are missing: {', '.join(shard_counts)}; run those tasks again, then this command"
        ]
    elif outcome.waiting and not errors:
        print(f"not complete, left to other tasks: {', '.join(outcome.waiting)}", file=sys.stderr)
        if request.task_count == 1:
            errors = ["another process is converting these; run the same command again when it is done"]
    damage = "" if errors else _describe_damage(outcome, request)
    for message in filter(None, (*errors, damage)):
        print(f"error: {message}", file=sys.stderr)
    return EXIT_FAILED if errors else EXIT_DAMAGED if damage else 0


def _describe_damage(outcome: Outcome, request: ConvertRequest) -> str:
    """Return an error about the complete datasets whose input was damaged, empty if there are none."""
    damage = {status.name: count_damage(manifest.left_out) for status, manifest in outcome.complete}
    damage_list = ", ".join(f"{name} ({count:,})" for name, count in damage.items() if count)
    is_broken = any(reason in manifest.left_out for _, manifest in outcome.complete for reason in BROKEN_FILE)
    advice = "Copy the damaged files again" if is_broken else "Mend the source"
    return damage_list and (
        f"complete, but damaged input was left out: {damage_list}; see quarantine.jsonl in "
        f"{request.output}/<dataset>/<version>. {advice} and run the same command: it converts their shards again"
    )
