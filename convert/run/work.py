"""Work on one dataset: a conversion that was asked for, and its finished parts when the command began."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convert.errors import ConflictError
from convert.journal.journal import Journal
from convert.journal.parameters import check_parameters
from convert.plan import Conversion
from convert.registry.dataset import reindex_hint
from convert.run.survey import Survey, find_redo, repaired_sources, survey

_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class Work:
    """A dataset to convert.

    Attributes:
        conversion: Conversion.
        found: Its finished and unfinished parts.
        again: Shards of a complete dataset to convert again.
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
    def journal(self) -> Journal:
        """Journal of the conversion."""
        return Journal(self.conversion.plan.output, self.conversion.plan.staging)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters and source metadata, which have to be the same for an interrupted conversion to continue."""
        return {**self.conversion.parameters, "source": self.conversion.source.fingerprint}


def find_work(conversions: Sequence[Conversion], redo: Sequence[str]) -> list[Work]:
    """Return the work on each dataset, and print which shards of complete datasets are converted again, and why.

    Args:
        conversions: Conversions.
        redo: Stems of shards to convert again.

    Raises:
        UsageError: There is no such shard.
        ConflictError: The output holds another conversion, or one with another registry entry that is not complete.
    """
    named = find_redo(conversions, redo)
    return [_find_work(conversion, named[conversion.spec.name]) for conversion in conversions]


def overwriting_work(conversion: Conversion, selection: str | None) -> Work:
    """Return the work on a dataset whose output is to be removed first.

    Args:
        conversion: Conversion.
        selection: Option that selects splits, as it was given; None for all splits.

    Raises:
        ConflictError: The output has splits that would not be converted again.
    """
    existing = Journal(conversion.plan.output).splits()
    others = [split for split in existing if split not in conversion.splits]
    if others and selection is not None:
        raise ConflictError(
            f"{conversion.plan.output} has {', '.join(others)} too, which --overwrite {selection} would remove and not "
            "convert again; leave that option out, or remove the folder yourself"
        )
    nothing = Survey(before=None, withdrawn=False, todo=conversion.jobs, merges=(), merged={}, finished={})
    return Work(conversion=conversion, found=nothing, removes=tuple(existing))


def _find_work(conversion: Conversion, redo: frozenset[str]) -> Work:
    found = survey(conversion, again=redo, redo=redo)
    work = Work(conversion=conversion, found=found, again=redo)
    if (started := work.journal.parameters()) is not None:
        check_parameters(started, work.parameters, where=conversion.plan.output)
    if (before := found.before) is None:
        return work
    repaired = repaired_sources(conversion, before)
    if repaired:
        found = survey(conversion, again=redo | set(repaired), redo=redo)
    output = conversion.plan.output
    if hint := reindex_hint(before.spec, conversion.spec, root=output.rsplit("/", 2)[0]):
        if not found.complete:
            raise ConflictError(f"{output} {hint}. Run it before anything is added, or use the entry as it was")
        print(f"warning: {output} {hint}", file=sys.stderr)
    _report_again(conversion, found, reasons=dict.fromkeys(redo, "--redo") | repaired)
    return Work(conversion=conversion, found=found, again=redo | set(repaired))


def _report_again(conversion: Conversion, found: Survey, *, reasons: Mapping[str, str]) -> None:
    """Print which shards of a complete dataset are converted again, and why."""
    dataset, journal = conversion.spec.name, Journal(conversion.plan.output)
    jobs = [job for job in found.todo if job.entry is not None]
    splits = found.before.splits if found.before and jobs else {}
    lost = {split for split, entry in splits.items() if not journal.has_index(entry.index, split)}
    for job in jobs[:_LISTED]:
        file = f"the index of {job.shard.split}" if job.shard.split in lost else "its ArrayRecord file"
        reason = reasons.get(job.stem, f"{file} is missing or incomplete")
        print(f"{dataset}: {job.stem} is converted again: {reason}", file=sys.stderr)
    if len(jobs) > _LISTED:
        print(f"{dataset}: and {len(jobs) - _LISTED:,} more", file=sys.stderr)
