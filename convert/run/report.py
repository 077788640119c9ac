"""The result of a conversion, and the plan of one, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convert.journal.remote import AnyJournal, open_journal
from convert.plan import Conversion
from convert.report import format_table, human_bytes
from convert.run.estimate import estimate
from convert.run.survey import Survey
from stream.format.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Work:
    """A dataset that was asked for, and what was finished of it when the command began.

    Attributes:
        again: Shards of a complete dataset that are to be converted again.
        removes: Splits that --overwrite removes.
    """

    conversion: Conversion
    found: Survey
    again: frozenset[str] = frozenset()
    removes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.conversion.spec.name

    @property
    def output(self) -> str:
        """Folder ``ROOT/<dataset>/<version>``."""
        return self.conversion.plan.output

    @property
    def journal(self) -> AnyJournal:
        """Journal of the conversion."""
        return open_journal(self.output, self.conversion.plan.staging)


def summarise(manifest: Manifest, works: Sequence[Work]) -> dict[str, Any]:
    """Return the result of one dataset, for --json."""
    work = next(work for work in works if work.name == manifest.dataset)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    tables = [table for split in manifest.splits.values() for table in split.index.values()]
    return {
        "dataset": manifest.dataset,
        "version": manifest.version,
        "output": work.output,
        "splits": {name: split.records for name, split in manifest.splits.items()},
        "episodes": manifest.episodes,
        "steps": manifest.steps,
        "pairs": manifest.records,
        "bytes_in": sum(shard.source_bytes for shard in shards),
        "bytes_out": sum(shard.file.bytes for shard in shards) + sum(table.bytes for table in tables),
        "shards": len(shards),
        "shards_converted": len(work.found.todo),
        "left_out": manifest.left_out,
    }


def print_result(manifests: Sequence[Manifest], works: Sequence[Work]) -> None:
    """Print a row for each dataset that is complete."""
    rows = []
    for manifest in manifests:
        summary = summarise(manifest, works)
        reasons = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in manifest.left_out.items())
        rows.append(
            [
                manifest.dataset,
                manifest.version,
                ", ".join(manifest.splits),
                manifest.episodes,
                manifest.records,
                human_bytes(summary["bytes_in"]),
                human_bytes(summary["bytes_out"]),
                reasons or "-",
            ]
        )
    if rows:
        header = ["dataset", "version", "splits", "episodes", "pairs", "in", "out", "left out"]
        if len(rows) > 1:
            summaries = [summarise(manifest, works) for manifest in manifests]
            total = {key: sum(s[key] for s in summaries) for key in ("episodes", "pairs", "bytes_in", "bytes_out")}
            sizes = (human_bytes(total["bytes_in"]), human_bytes(total["bytes_out"]))
            rows.append([f"{len(rows)} datasets", "", "", total["episodes"], total["pairs"], *sizes, ""])
        print(format_table(header, rows))
        done = sum(work.found.complete for work in works)
        if done:
            print(f"{done} of {len(works)} were complete already")


def print_plan(works: Sequence[Work], *, as_json: bool) -> None:
    """Print what would be done, a row for each dataset."""
    rows: list[dict[str, Any]] = []
    for work in works:
        conversion = work.conversion
        expected = estimate(conversion)
        rows.append(
            {
                "dataset": conversion.spec.name,
                "version": conversion.spec.version,
                "source": conversion.source.path,
                "output": work.output,
                "splits": conversion.splits,
                "episodes": sum(job.episodes for job in conversion.jobs),
                "shards": len(conversion.jobs),
                "shards_done": len(conversion.jobs) - len(work.found.todo),
                "complete": work.found.complete,
                "offset": conversion.plan.offset,
                "bytes_in": sum(job.size for job in conversion.jobs),
                "estimated_pairs": expected.pairs,
                "estimated_bytes": expected.bytes,
                "removes": work.removes,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    header = ["dataset", "version", "splits", "episodes", "offset", "shards done", "in", "pairs (est.)", "out (est.)"]
    table = [
        [
            row["dataset"],
            row["version"],
            ", ".join(row["splits"]),
            row["episodes"],
            row["offset"],
            f"{row['shards_done']:,}/{row['shards']:,}" + (" complete" if row["complete"] else ""),
            human_bytes(row["bytes_in"]),
            row["estimated_pairs"] if row["estimated_pairs"] is not None else "?",
            human_bytes(row["estimated_bytes"]) if row["estimated_bytes"] is not None else "?",
        ]
        for row in rows
    ]
    if len(rows) > 1:
        known = {key: sum(row[key] or 0 for row in rows) for key in ("episodes", "bytes_in", "estimated_pairs")}
        shards = f"{sum(row['shards_done'] for row in rows):,}/{sum(row['shards'] for row in rows):,}"
        out = human_bytes(sum(row["estimated_bytes"] or 0 for row in rows))
        total = [known["episodes"], "", shards, human_bytes(known["bytes_in"]), known["estimated_pairs"], out]
        table.append([f"{len(rows)} datasets", "", "", *total])
    print(format_table(header, table))
    for work in works:
        if work.removes:
            print(f"{work.name}: --overwrite would remove {', '.join(work.removes)} in {work.output}")
