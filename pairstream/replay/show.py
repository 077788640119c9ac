"""A batch in a notebook: frames of all cameras with captions, and curves of the actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pairstream.replay.batch_html import rows_html
from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.base.html import Markup
from stream.order.reference import SampleRef

if TYPE_CHECKING:
    from stream.loader.loader import Loader

_MOST_ROWS = 64
_COLUMNS = ("dataset", "episode", "step", "offset", "language")
"""Keys of a batch that captions are made of."""


def show(batch: Mapping[str, Any], loader: Loader | None = None, *, rows: int = 8) -> Markup:
    """Return the first rows of a batch as HTML: frames of all cameras, origin, instruction, and a plot of the actions.

    A notebook shows it. A frame whose mask is False is an empty box.

    Args:
        batch: Batch of a loader, of arrays or tensors.
        loader: Loader of the batch, for the names of the datasets; needed if the batch has no ``language``.
        rows: Rows to show, at most 64.

    Raises:
        ArgumentError: The batch has no frames, is not from this loader, or lacks the origin of its rows.
    """
    if not isinstance(batch, Mapping):
        raise ArgumentError(f"show: {batch!s:.100}; expected a batch, such as loader.batch_at(0) or next(iter(loader))")
    num_rows = min(check_whole_number("rows", rows, least=1), _MOST_ROWS)
    if not {batch_key.partition("/")[0] for batch_key in batch} & {"frames", "depth"}:
        remedy = (
            "take the batch of loader.batch_on_host(step)" if "frames_jpeg" in batch else "make a loader with frames"
        )
        keys = ", ".join(batch)
        raise ArgumentError(f"show: the batch has no frames, its keys are {keys}; {remedy}")
    if not getattr(batch.get("sample"), "shape", ()):
        raise ArgumentError("show: has no dimension of rows, so it is one sample, or no batch of a loader")
    # A tensor may be on a device.
    arrays = {key: value.cpu() if hasattr(value, "cpu") else value for key, value in batch.items()}
    first_rows = {
        key: value[:num_rows] if isinstance(value, list) else np.asarray(value)[:num_rows]
        for key, value in arrays.items()
    }
    return rows_html(first_rows, _refs(first_rows, loader))


def _refs(batch: Mapping[str, Any], loader: Loader | None) -> list[SampleRef]:
    sample_numbers = batch["sample"].tolist()
    if loader is not None:
        refs = loader.describe(sample_numbers[0] // loader.batch_size)[: len(sample_numbers)]
        if [sample_ref.sample for sample_ref in refs] != sample_numbers:
            samples_text = f"{sample_numbers[0]} to {sample_numbers[-1]}"
            raise ArgumentError(f"show: samples {samples_text} are no batch of this loader")
        return refs
    if missing := [batch_key for batch_key in _COLUMNS if batch_key not in batch]:
        raise ArgumentError(f"show: the batch lacks {', '.join(missing)}; give its loader: show(batch, loader)")
    unknown: dict[str, Any] = dict.fromkeys(("split", "source_file", "episode_id", "shard"), "")
    unknown |= {"epoch": 0, "record": 0}
    refs = []
    for row, sample_number in enumerate(sample_numbers):
        numbers: dict[str, Any] = {name: int(batch[name][row]) for name in ("episode", "step", "offset")}
        texts = {"dataset": f"dataset {batch['dataset'][row]}", "language": batch["language"][row]}
        refs.append(SampleRef(**unknown, **numbers, **texts, sample=sample_number))
    return refs
