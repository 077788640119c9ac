"""Figures of a loader in a log of training runs: wandb, trackio, TensorBoard, or a function."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from stream.base.arguments import check_whole
from stream.base.errors import ArgumentError
from stream.batch.assemble import BatchResult
from stream.loader.rank_plan import RankPlan

_log = logging.getLogger("stream")
_MASKS = ("frames_mask", "depth_mask", "sample_mask")

Send = Callable[[int, dict[str, float]], object]
"""A function that takes the figures of a step, by name."""


class RunLog:
    """Watcher of a loader's batches that sends figures every some steps.

    Args:
        plan: Steps of the loader's rank, with its counters.
        target: As for ``Loader.log_to``.
        every: Steps between two reports.

    Raises:
        ArgumentError: ``target`` is none of these, or ``every`` is not a whole number from 1.
    """

    def __init__(self, plan: RankPlan, target: Any, *, every: int) -> None:
        self.target = target
        self.every = check_whole("every", every, least=1)
        self._send: Send | None = _sender(target)
        self._plan = plan
        self._masked = 0
        self._epochs: dict[str, float] = {}
        # Step after the last report, its time, and the counts at that time.
        self._first = self._next = -1
        self._began = 0.0
        self._waited = 0.0

    def __call__(self, step: int, made: BatchResult) -> None:
        """Note the batch of a step, and send the figures if they are due.

        A target that fails is told once, and gets no further figures: training goes on.
        """
        if self._send is None:
            return
        self._masked += _masked_rows(made)
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
        data, counters, batch_size = self._plan.data, self._plan.counters, self._plan.running.batch_size
        seconds = max(time.perf_counter() - self._began, 1e-9)
        samples = np.arange(self._first * batch_size, self._next * batch_size)
        yield "loader/waiting_share", (counters.waited - self._waited) / seconds
        yield "loader/samples_per_s", len(samples) / seconds
        yield "loader/replaced_rows", counters.replaced
        yield "loader/masked_rows", self._masked
        members, draws = data.plan.mix.locate(samples)
        shares = np.bincount(members, minlength=len(data.names)) / len(samples)
        weights = data.weights_at(step)
        for number, (name, size) in enumerate(data.sizes.items()):
            if shares[number]:
                self._epochs[name] = (int(draws[members == number].max()) + 1) / size
            yield f"loader/share/{name}", float(shares[number])
            yield f"loader/weight/{name}", weights[name]
            if name in self._epochs:
                yield f"loader/epoch/{name}", self._epochs[name]


def _masked_rows(made: BatchResult) -> int:
    """Return how many rows have a frame that is not real, or pad the batch."""
    masked = np.zeros(len(made.rows), bool)
    for key, value in made.batch.items():
        # A transform may have put anything in its place.
        if key.partition("/")[0] in _MASKS and isinstance(value, np.ndarray) and len(value) == len(masked):
            masked |= ~value.reshape(len(masked), -1).all(axis=1)
    return int(masked.sum())


def _sender(target: Any) -> Send:
    """Return the function that sends figures to a target, which its methods tell."""
    if isinstance(target, ModuleType | type):
        raise ArgumentError(f"log_to: {target!r:.100}; give the run that {target.__name__}.init returned, or an object")
    if hasattr(target, "add_scalar"):
        return lambda step, figures: [target.add_scalar(name, value, step) for name, value in figures.items()]
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
    last: int | None = None

    def send(step: int, figures: dict[str, float]) -> None:
        nonlocal last
        if run.step == last:
            # The script wrote nothing since, so the figures before would be overwritten.
            run.log({}, commit=True)
        run.log({"loader/step": step, **figures}, commit=False)
        last = run.step

    return send
