"""Split expressions in TFDS's grammar, such as ``train[:90%]`` or ``train[10:] + val``, and their episode numbers.

The rules are those of ``tensorflow_datasets/core/splits.py``: an expression that resolves here names the examples that
TFDS reads, in the same order. Expressions that TFDS misreads are refused:

- ``train[5:3]`` starts after its stop, also by rounding; inside one shard TFDS reads on to the end of the shard.
- ``train[-1%:]`` of 40 episodes rounds to 0, the first episode, so TFDS reads the complete split.
- ``train[1shard:50%]`` has two units; TFDS applies the first to both.
- ``train[:0shard]`` reads the complete split, and ``train[:-6shard]`` of 4 shards counts from the end twice.
- ``all`` with a split named ``all`` or not a word; TFDS parses the joined names.

A unit on one side holds for both sides (``train[0%:3]`` is 0% to 3%). Shards beyond the last are ignored, episodes
beyond the last are refused. ``1_000`` and digits of any script are numbers. Ranges may be empty.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_MAX_CHARACTERS = 10_000
_HELD_OUT = ("val", "validation", "valid", "eval", "dev")
"""Names of a validation split."""
_NAME = re.compile(r"[\w-]+")
# Like TFDS, this allows a final newline (`$`). No two repeats can share a character, so a match takes linear time.
_TERM = re.compile(r"(?P<name>[\w-]+)(?:\[(?P<selector>[\w%:.-]+)\])?$")
_BOUND = re.compile(r"(?:(?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")


class SplitError(ValueError):
    """A split expression that breaks the grammar or does not match the dataset; the message quotes the wrong part."""


@dataclass(frozen=True)
class EpisodeRange:
    """Episodes [start, stop) of one split, numbered from 0 in the order of its shards."""

    split: str
    start: int
    stop: int


def resolve_split(expression: str, shard_lengths: Mapping[str, Sequence[int]]) -> list[EpisodeRange]:
    """Return the episodes that a split expression names.

    Args:
        expression: Terms joined by ``+``. A term is a split, a split with a slice ``[a:b]``, or ``all`` for every split
            in the order of the mapping. The ends of a slice count episodes (``10``), per cent (``12.5%``, rounded to
            the closest episode, halves to the even one) or shards (``2shard``), from the end if negative. One end may
            be left out. ``[3shard]`` is one shard.
        shard_lengths: Episode counts of the shards, by split, in order.

    Returns:
        A range for each term (for ``all`` one for each split), in order; ranges may be empty and may overlap.

    Raises:
        SplitError: The expression breaks the grammar, names an unknown split, lies outside its split, or is one that
            TFDS misreads (see the module).

    >>> shards = {"train": [4, 3, 3], "val": [5]}
    >>> resolve_split("train[:75%] + val", shards)  # 7.5 episodes: the even neighbour
    [EpisodeRange(split='train', start=0, stop=8), EpisodeRange(split='val', start=0, stop=5)]
    >>> resolve_split("train[-1shard]", shards)
    [EpisodeRange(split='train', start=7, stop=10)]
    >>> resolve_split("train[1shard:]+train[-2:]", shards)
    [EpisodeRange(split='train', start=4, stop=10), EpisodeRange(split='train', start=8, stop=10)]
    >>> resolve_split("trian[:3]", shards)
    Traceback (most recent call last):
    stream.order.splits.SplitError: split 'trian[:3]': no split 'trian', there are 'train', 'val'; did you mean 'train'?
    """
    if len(expression) > _MAX_CHARACTERS:
        raise SplitError(
            f"split {_quote(expression)} has {len(expression):,} characters, expected at most {_MAX_CHARACTERS:,}"
        )
    if expression in shard_lengths:
        _check_names([expression])
    terms = expression.split("+")
    episode_ranges: list[EpisodeRange] = []
    for term_number, term in enumerate(terms, 1):
        term = term if term_number == 1 else term.lstrip()
        term = term if term_number == len(terms) else term.rstrip()
        try:
            episode_ranges += _resolve_term(term, shard_lengths)
        except SplitError as error:
            context = f", term {term_number} of {len(terms)}" if len(terms) > 1 else ""
            raise SplitError(f"split {_quote(expression)}{context}: {error}") from None
    return episode_ranges


def near_split(wrong_name: str, splits: Iterable[str]) -> str | None:
    """Return the split that a wrong name probably means, or None.

    >>> near_split("validation", ["train", "val"]), near_split("trian", ["train", "val"]), near_split("dev", ["train"])
    ('val', 'train', None)
    """
    if wrong_name.lower() in _HELD_OUT:
        return next((split for split in splits if split.lower() in _HELD_OUT), None)
    close_matches = difflib.get_close_matches(wrong_name[:80].lower(), splits, n=1, cutoff=0.4)
    return close_matches[0] if close_matches else None


def _resolve_term(term: str, shard_lengths: Mapping[str, Sequence[int]]) -> list[EpisodeRange]:
    match = _TERM.match(term)
    if not match:
        raise SplitError(
            f"found {_quote(term)}, expected a split, or a slice of one such as train[10:], train[:90%] or "
            f"train[3shard], without spaces except next to a +"
        )
    split_name, selector = match["name"], match["selector"]
    if split_name == "all":
        if selector:
            raise SplitError(f"found the slice {_quote(selector)} of all, which cannot be sliced; slice each split")
        if not shard_lengths:
            raise SplitError("found all, but the dataset has no splits; convert it again")
        _check_names(shard_lengths)
        return [EpisodeRange(split, 0, sum(map(int, lengths))) for split, lengths in shard_lengths.items()]
    if split_name not in shard_lengths:
        available = ", ".join(map(_quote, shard_lengths)) or "none"
        nearest_name = near_split(split_name, shard_lengths)
        hint = f"; did you mean {_quote(nearest_name)}?" if nearest_name else ""
        if not nearest_name and split_name.lower() in _HELD_OUT and "train" in shard_lengths:
            hint = "; hold out a part of one: train on 'train[:90%]', validate on 'train[90%:]'"
        raise SplitError(f"no split {_quote(split_name)}, there are {available}{hint}")
    lengths = [int(length) for length in shard_lengths[split_name]]
    return [EpisodeRange(split_name, *(_resolve_slice(selector, lengths) if selector else (0, sum(lengths))))]


def _resolve_slice(selector: str, lengths: list[int]) -> tuple[int, int]:
    """Return start and stop in episodes, 0 <= start <= stop <= sum(lengths), computed in the order of TFDS."""
    context, num_episodes = f"found the slice {_quote(f'[{selector}]')}", sum(lengths)
    bounds = [bound for bound_text in selector.split(":") if (bound := _BOUND.fullmatch(bound_text))]
    if len(bounds) != selector.count(":") + 1 or len(bounds) > 2 or selector == ":":
        raise SplitError(f"{context}, expected one such as [10:], [:-5], [20%:80%], [:2shard] or [3shard]")
    bound_units = {bound["unit"] for bound in bounds if bound["unit"]}
    if len(bound_units) > 1:
        raise SplitError(
            f"{context} with two units; TFDS would use the first for both, so write one unit on both sides"
        )
    slice_unit = next(iter(bound_units), None)
    if len(bounds) == 1 and slice_unit != "shard":
        raise SplitError(
            f"{context}, but only a shard can be named without a colon; write [a:b], for one episode [7:8]"
        )
    first_value, last_value = bounds[0]["value"], bounds[-1]["value"]
    start, stop = 0, num_episodes
    if slice_unit == "%":
        start = _percent(first_value, num_episodes, context) if first_value else start
        stop = _percent(last_value, num_episodes, context) if last_value else stop
    elif slice_unit == "shard":
        start = sum(lengths[: _whole_number(first_value, context)]) if first_value else start
        stop = sum(lengths[: _last_shard(bounds, len(lengths), context)]) if last_value else stop
    else:
        start = _whole_number(first_value, context) if first_value else start
        stop = _whole_number(last_value, context) if last_value else stop
    if abs(start) > num_episodes or abs(stop) > num_episodes:
        raise SplitError(f"{context}, but the split has {num_episodes:,} episodes; stay within them, or use per cent")
    start, stop = (episode + num_episodes if episode < 0 else episode for episode in (start, stop))
    if start > stop:
        raise SplitError(
            f"{context}, which starts at episode {start:,} and stops before it at {stop:,} (of {num_episodes:,}), and "
            f"TFDS would read other episodes or none; swap its ends, or count both from the same side"
        )
    return start, stop


def _last_shard(bounds: list[re.Match[str]], num_shards: int, context: str) -> int:
    """Return the stop of a slice in shards, counted from the first shard."""
    last_shard = _whole_number(bounds[-1]["value"], context)
    if len(bounds) == 1:
        last_shard += 1
    elif last_shard == 0:
        raise SplitError(f"{context}, and TFDS would read a stop at shard 0 as the end of the split; leave it out")
    if last_shard + num_shards < 0:
        raise SplitError(f"{context}, but the split has {num_shards:,} shards; TFDS would count from their end twice")
    return last_shard + num_shards if last_shard <= 0 else last_shard


def _whole_number(value: str, context: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise SplitError(
            f"{context}, in which {_quote(value)} is not a whole number; only per cent may have a fraction"
        ) from None


def _percent(value: str, num_episodes: int, context: str) -> int:
    try:
        percent = float(value)
    except ValueError:
        raise SplitError(f"{context}, in which {_quote(value)} is not a number") from None
    if abs(percent) > 100:
        raise SplitError(f"{context}, in which {_quote(value)}% is outside of -100% to 100%; stay within")
    episode = round(percent * num_episodes / 100.0)
    if percent < 0 and episode == 0 < num_episodes:
        raise SplitError(
            f"{context}, but {_quote(value)}% of {num_episodes:,} episodes rounds to none, and TFDS would count from "
            f"the first instead of the last; take a larger share, or count in episodes"
        )
    return episode


def _check_names(splits: Iterable[str]) -> None:
    for split in splits:
        if split == "all" or not _NAME.fullmatch(split):
            raise SplitError(f"the dataset has a split {_quote(split)}, which TFDS would misread; rename it")


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
