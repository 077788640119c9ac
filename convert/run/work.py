"""Choice of the work on each dataset: what is missing, what is converted again, what --overwrite removes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from convert.errors import ConflictError
from convert.journal.journal import Journal, check_parameters
from convert.plan import Conversion
from convert.registry.dataset import reindex_hint
from convert.run.request import ConvertRequest
from convert.run.status import ConversionStatus, find_redo, read_status, repaired_sources

_LISTED = 5


def find_work(conversions: Sequence[Conversion], request: ConvertRequest) -> list[ConversionStatus]:
    """Return the work on each dataset, and print which shards of complete datasets are converted again, and why.

    Raises UsageError if there is no shard that ``--redo`` names; ConflictError if the output holds another conversion,
    or splits that ``--overwrite`` would remove and not convert again.
    """
    if request.overwrite:
        return [_overwriting_work(conversion, request) for conversion in conversions]
    redo_by_dataset = find_redo(conversions, request.redo)
    return [_find_work(conversion, redo_by_dataset[conversion.name], request.config) for conversion in conversions]


def _overwriting_work(conversion: Conversion, request: ConvertRequest) -> ConversionStatus:
    """Return the work on a dataset whose earlier conversion is to be replaced; continues after an interrupt."""
    existing = Journal(conversion.target).splits()
    other_splits = [split for split in existing if split not in conversion.splits]
    if other_splits and request.episodes is not None:
        raise ConflictError(
            f"{conversion.target} has {', '.join(other_splits)} too, which --overwrite --episodes {request.episodes} "
            "would remove and not convert again; leave that option out, or remove the folder yourself"
        )
    try:
        status = _find_work(conversion, frozenset(), request.config)
    except ConflictError:
        status = ConversionStatus(conversion=conversion, pending_jobs=list(conversion.jobs), discards_output=True)
    return replace(status, removed_splits=list(existing))


def _find_work(conversion: Conversion, redo_stems: frozenset[str], config: Sequence[str]) -> ConversionStatus:
    status = read_status(conversion, redone_stems=redo_stems, redo=redo_stems)
    if (started_parameters := conversion.journal.parameters()) is not None:
        check_parameters(started_parameters, conversion.journal_parameters, location=conversion.plan.output)
    if (before := status.old_manifest) is None:
        return status
    if repaired := repaired_sources(conversion, before):
        status = read_status(conversion, redone_stems=redo_stems | set(repaired), redo=redo_stems)
    output = conversion.plan.output
    if reindex_advice := reindex_hint(
        before.spec, conversion.spec, output_root=output.rsplit("/", 2)[0], config=config
    ):
        if not status.complete:
            raise ConflictError(
                f"{output} {reindex_advice}. Run it before anything is added, or use the entry as it was"
            )
        print(f"warning: {output} {reindex_advice}", file=sys.stderr)
    _print_redone(status, reasons=dict.fromkeys(redo_stems, "--redo") | repaired)
    return status


def _print_redone(status: ConversionStatus, *, reasons: Mapping[str, str]) -> None:
    """Print which shards of a complete dataset are converted again, and why."""
    redone_jobs = [job for job in status.pending_jobs if job.entry is not None]
    splits = status.old_manifest.splits if status.old_manifest and redone_jobs else {}
    lost_splits = {
        split for split, entry in splits.items() if not status.conversion.journal.has_index(entry.index, split)
    }
    for job in redone_jobs[:_LISTED]:
        lost_file = f"the index of {job.shard.split}" if job.shard.split in lost_splits else "its ArrayRecord file"
        reason = reasons.get(job.stem, f"{lost_file} is missing or incomplete")
        print(f"{status.name}: {job.stem} is converted again: {reason}", file=sys.stderr)
    if len(redone_jobs) > _LISTED:
        print(f"{status.name}: and {len(redone_jobs) - _LISTED:,} more", file=sys.stderr)
