"""Choice of the work on each dataset: what is missing, what is converted again, what --overwrite removes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from convert.errors import ConflictError
from convert.journal.journal import Journal, check_parameters
from convert.plan import Conversion
from convert.registry.dataset import reindex_hint
from convert.run.status import ConversionStatus, find_redo, repaired_sources, survey

_LISTED = 5


def find_work(
    conversions: Sequence[Conversion], redo: Sequence[str], *, config: Sequence[str] = ()
) -> list[ConversionStatus]:
    """Return the work on each dataset, and print which shards of complete datasets are converted again, and why.

    ``redo`` are the stems of shards to convert again, ``config`` the files that the registry was read with.

    Raises:
        UsageError: There is no such shard.
        ConflictError: The output holds another conversion, or one with another registry entry that is not complete.
    """
    named = find_redo(conversions, redo)
    return [_find_work(conversion, named[conversion.name], config) for conversion in conversions]


def overwriting_work(conversion: Conversion, selection: str | None, *, config: Sequence[str] = ()) -> ConversionStatus:
    """Return the work on a dataset whose earlier conversion is to be replaced; goes on after an interrupt.

    ``selection`` is the option that selects splits, as it was given; None for all splits.

    Raises:
        ConflictError: The output has splits that would not be converted again.
    """
    existing = Journal(conversion.target).splits()
    others = [split for split in existing if split not in conversion.splits]
    if others and selection is not None:
        raise ConflictError(
            f"{conversion.target} has {', '.join(others)} too, which --overwrite {selection} would remove and not "
            "convert again; leave that option out, or remove the folder yourself"
        )
    try:
        return replace(_find_work(conversion, frozenset(), config), removes=list(existing))
    except ConflictError:
        return ConversionStatus(
            conversion=conversion, todo=list(conversion.jobs), removes=list(existing), discards=True
        )


def _find_work(conversion: Conversion, redo: frozenset[str], config: Sequence[str]) -> ConversionStatus:
    found = survey(conversion, again=redo, redo=redo)
    if (started := conversion.journal.parameters()) is not None:
        check_parameters(started, conversion.journal_parameters, location=conversion.plan.output)
    if (before := found.before) is None:
        return found
    if repaired := repaired_sources(conversion, before):
        found = survey(conversion, again=redo | set(repaired), redo=redo)
    output = conversion.plan.output
    if hint := reindex_hint(before.spec, conversion.spec, root=output.rsplit("/", 2)[0], config=config):
        if not found.complete:
            raise ConflictError(f"{output} {hint}. Run it before anything is added, or use the entry as it was")
        print(f"warning: {output} {hint}", file=sys.stderr)
    _tell_again(found, reasons=dict.fromkeys(redo, "--redo") | repaired)
    return found


def _tell_again(found: ConversionStatus, *, reasons: Mapping[str, str]) -> None:
    """Print which shards of a complete dataset are converted again, and why."""
    jobs = [job for job in found.todo if job.entry is not None]
    splits = found.before.splits if found.before and jobs else {}
    lost = {split for split, entry in splits.items() if not found.conversion.journal.has_index(entry.index, split)}
    for job in jobs[:_LISTED]:
        file = f"the index of {job.shard.split}" if job.shard.split in lost else "its ArrayRecord file"
        reason = reasons.get(job.stem, f"{file} is missing or incomplete")
        print(f"{found.name}: {job.stem} is converted again: {reason}", file=sys.stderr)
    if len(jobs) > _LISTED:
        print(f"{found.name}: and {len(jobs) - _LISTED:,} more", file=sys.stderr)
