"""Split expressions in TFDS's grammar, such as ``train[:90%]`` or ``train[10:]+val``, resolved by episodes.

Source of the grammar and its rounding: tensorflow_datasets/core/splits.py. TFDS itself is not imported: it is large,
and what is needed of it is this page.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TERM = re.compile(r"(?P<split>[\w-]+)(?:\[(?P<slice>[^\[\]]*)\])?")
_BOUND = re.compile(r"(?P<number>-?\d[\d_]*(?:\.\d+)?)(?P<unit>%|shard)?")


class SplitError(ValueError):
    """A split expression that cannot be used; the message says which part, and which splits there are."""


@dataclass(frozen=True)
class EpisodeRange:
    """Episodes [start, stop) of one split, counted in the order of its shards."""

    split: str
    start: int
    stop: int


def resolve_split(expression: str, shards: Mapping[str, Sequence[int]]) -> tuple[EpisodeRange, ...]:
    """Return the episodes that an expression names.

    Args:
        expression: terms with ``+`` between. A term is a split, ``all``, or a split with a slice: ``[a:b]`` in episodes
            (``10``), per cent (``90%``, rounded to the closest episode) or shards (``2shard``), each end optional and
            negative from the end; ``[3shard]`` is one shard.
        shards: for each split, the episodes of each shard.

    Returns:
        The ranges in the order of the terms, without empty ones.

    Raises:
        SplitError: not of the grammar, no such split, or nothing is left (says how many episodes there were).

    >>> resolve_split("train[:90%]", {"train": [6, 4]})
    (EpisodeRange(split='train', start=0, stop=9),)
    """
    ranges: list[EpisodeRange] = []
    for term in expression.split("+"):
        match = _TERM.fullmatch(term.strip())
        if not match:
            raise SplitError(
                f"split {expression!r}: {term.strip()!r} is not a split or a slice of one, like train[:90%]"
            )
        names = list(shards) if match["split"] == "all" and "all" not in shards else [match["split"]]
        for name in names:
            if name not in shards:
                raise SplitError(f"split {expression!r}: no split {name!r}{_hint(name, shards)}")
            start, stop = _slice(match["slice"], shards[name], expression)
            if start < stop:
                ranges.append(EpisodeRange(name, start, stop))
    if not ranges:
        counts = ", ".join(f"{name} {sum(lengths):,}" for name, lengths in shards.items())
        raise SplitError(f"split {expression!r} leaves no episode of {counts}")
    return tuple(ranges)


def _slice(text: str | None, lengths: Sequence[int], expression: str) -> tuple[int, int]:
    total = sum(lengths)
    if text is None:
        return 0, total
    bounds = [bound.strip() for bound in text.split(":")]
    if len(bounds) == 1 and bounds[0].endswith("shard"):
        start = _bound(bounds[0], lengths, expression)
        number = int(bounds[0].removesuffix("shard").replace("_", ""))
        return start, start + lengths[number]
    if len(bounds) != 2:
        raise SplitError(f"split {expression!r}: slice [{text}] is not of the form [a:b]")
    start = _bound(bounds[0], lengths, expression) if bounds[0] else 0
    stop = _bound(bounds[1], lengths, expression) if bounds[1] else total
    return start, stop


def _bound(text: str, lengths: Sequence[int], expression: str) -> int:
    total = sum(lengths)
    match = _BOUND.fullmatch(text)
    if not match or (match["unit"] != "%" and "." in match["number"]):
        raise SplitError(f"split {expression!r}: {text!r} is not a number of episodes (10), per cent (90%) or 2shard")
    if match["unit"] == "%":
        share = float(match["number"].replace("_", ""))
        if not -100 <= share <= 100:
            raise SplitError(f"split {expression!r}: {text!r} is not between -100% and 100%")
        number = round(share * total / 100)
    else:
        number = int(match["number"].replace("_", ""))
        if match["unit"] == "shard":
            if not -len(lengths) <= number <= len(lengths):
                raise SplitError(f"split {expression!r}: {text!r}, but the split has {len(lengths):,} shards")
            return sum(lengths[:number])
    return min(max(number + total if number < 0 else number, 0), total)


def _hint(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
