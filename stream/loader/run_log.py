"""Figures of a loader in a log of training runs: wandb, trackio, TensorBoard, or a function."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.batch.result import BatchResult
from stream.loader.rank_plan import RankPlan

_log = logging.getLogger("stream")
_MASKS = ("frames_mask", "depth_mask", "sample_mask")

Send = Callable[[int, dict[str, float]], object]
"""A function that takes the figures of a step, by name."""


class RunLog:
    """Watcher of a loader's batches that sends figures every few steps.

    Args:
        plan: Steps of the loader's rank, with its counters.
        target: As for ``Loader.log_to``.
        every: Steps between two reports.

    Raises:
        ArgumentError: ``target`` is something else, or ``every`` is not a whole number from 1.
    """

    def __init__(self, rank_plan: RankPlan, target: Any, *, every: int) -> None:
        self.target = target
        self.every = check_whole_number("every", every, least=1)
        self._send: Send | None = _sender(target)
        self._plan = rank_plan
        self._masked = 0
        self._epochs: dict[str, float] = {}
        # Step after the last report, its time, and the counts at that time.
        self._first = self._next = -1
        self._began = 0.0
        self._waited = 0.0

    def __call__(self, step: int, result: BatchResult) -> None:
        """Count the batch of a step, and send the figures if they are due.

        A failing target is reported once, and gets no further figures: training continues.
        """
        if self._send is None:
            return
        self._masked += _masked_rows(result)
        if step != self._next:
            self._begin(step + 1)
        self._next = step + 1
        if self._next % self.every or self._next == self._first:
            return
        try:
            self._send(step, dict(self._figures(step)))
        except Exception as error:
            self._send = None
            _log.warning("loader.log_to: nothing more is logged, as the target failed at step %d: %r", step, error)
        self._begin(self._next)

    def _begin(self, step: int) -> None:
        self._first, self._began, self._waited = step, time.perf_counter(), self._plan.counters.waited

    def _figures(self, step: int) -> Iterator[tuple[str, float]]:
        mixture, counters, batch_size = self._plan.mixture, self._plan.counters, self._plan.run_config.batch_size
        seconds = max(time.perf_counter() - self._began, 1e-9)
        samples = np.arange(self._first * batch_size, self._next * batch_size)
        yield "loader/waiting_share", (counters.waited - self._waited) / seconds
        yield "loader/samples_per_s", len(samples) / seconds
        yield "loader/replaced_rows", counters.replaced
        yield "loader/masked_rows", self._masked
        # The shares are of all ranks, so they follow from the plan, not from this rank's batches.
        members, draw_numbers = mixture.plan.mix.locate(samples)
        shares = np.bincount(members, minlength=len(mixture.names)) / len(samples)
        weights = mixture.weights_at(step)
        for member_number, (dataset_name, num_samples) in enumerate(mixture.sizes.items()):
            if shares[member_number]:
                self._epochs[dataset_name] = (int(draw_numbers[members == member_number].max()) + 1) / num_samples
            yield f"loader/share/{dataset_name}", float(shares[member_number])
            yield f"loader/weight/{dataset_name}", weights[dataset_name]
            if dataset_name in self._epochs:
                yield f"loader/epoch/{dataset_name}", self._epochs[dataset_name]


def _masked_rows(result: BatchResult) -> int:
    """Return the count of rows that have a frame with mask False, or pad the batch."""
    masked = np.zeros(len(result.rows), bool)
    for batch_key, value in result.batch.items():
        # A transform may have replaced the mask by anything.
        if batch_key.partition("/")[0] in _MASKS and isinstance(value, np.ndarray) and len(value) == len(masked):
            masked |= ~value.reshape(len(masked), -1).all(axis=1)
    return int(masked.sum())


def _sender(target: Any) -> Send:
    """Return the function that sends figures to a target, recognised by its methods."""
    if isinstance(target, ModuleType | type):
        raise ArgumentError(f"log_to: {target!r:.100}; give the run that {target.__name__}.init returned, or an object")
    if hasattr(target, "add_scalar"):
        return lambda step, figures: [
            target.add_scalar(figure_name, value, step) for figure_name, value in figures.items()
        ]
    if hasattr(target, "define_metric") and hasattr(target, "log"):
        return _to_wandb(target)
    if callable(getattr(target, "log", None)):
        return lambda step, figures: target.log(figures, step=step)
    if callable(target):
        return target
    raise ArgumentError(
        f"log_to: {target!r:.100}; expected a run of wandb or trackio, a SummaryWriter, or a function of step and dict"
    )


def _to_wandb(run: Any) -> Send:
    """Return the sender to a run of wandb, which never moves the run's own step beyond that of the training script.

    The figures join the row that the script writes next; wandb drops rows of an older step.
    """
    run.define_metric("loader/step", hidden=True)
    run.define_metric("loader/*", step_metric="loader/step")
    last_step: int | None = None

    def send(step: int, figures: dict[str, float]) -> None:
        nonlocal last_step
        if run.step == last_step:
            # The script has written nothing since, so the last figures would be overwritten.
            run.log({}, commit=True)
        run.log({"loader/step": step, **figures}, commit=False)
        last_step = run.step

    return send
