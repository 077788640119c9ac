"""The state of a loader in the form that checkpoints of trainers take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError, StateError
from stream.loader.iterator import StepIterator
from stream.loader.loader import Loader

_KEY = "loader"


class StepState:
    """The state of a loader, with the methods that checkpoints of trainers call.

    It is for Accelerate's ``register_for_checkpointing``, torch's distributed checkpoints (``Stateful``), Composer, and
    everything else that calls ``state_dict`` and ``load_state_dict``. The state is ``loader.state_at(step)`` as one
    text: torch's distributed checkpoints save each number of a nested dict by its path, and would not restore the parts
    that the current loader lacks.

    The step is that of the source: the batches that it returned. If your loop reads batches ahead of the batch that it
    trains on, set ``step`` after each step of training.

    Args:
        source: An iterator of batches, such as ``stream.torch.to_device(...)`` or ``stream.jax.to_devices(...)``; a
            ``StreamDataset``; or a ``Loader``, whose ``step`` you set.

    Raises:
        ArgumentError: ``source`` is something else.
    """

    def __init__(self, source: Any) -> None:
        if not isinstance(source, Loader | StepIterator) and not hasattr(source, "find_ranks"):
            raise ArgumentError(
                f"{type(source).__name__}: expected an iterator of batches, a StreamDataset, or a Loader of make_loader"
            )
        self._source = source
        self._step: int | None = None

    @property
    def step(self) -> int:
        """Step of the next batch to train on; may be set."""
        if self._step is None:
            return 0 if isinstance(self._source, Loader) else self._source.step
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = check_whole_number("step", step, least=0)

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """Return the state, as one text.

        Args:
            num_samples: Samples of all ranks that were trained on, if the trainer counts them, as Composer does.
            from_beginning: True, as samples count from step 0.

        Raises:
            ArgumentError: The source is a loader that has returned batches, and ``step`` was never set.
        """
        if not from_beginning:
            raise ArgumentError("from_beginning=False; a StepState counts samples from step 0")
        loader = self._loader()
        if num_samples is not None:
            step = check_whole_number("num_samples", num_samples, least=0) // loader.batch_size
        elif self._step is None and isinstance(self._source, Loader) and loader.stats()["batches"]:
            raise ArgumentError(
                "the loader has returned batches and StepState.step was never set; set it after each step of training, "
                "or give StepState the iterator of the batches"
            )
        else:
            step = self.step
        return {_KEY: json.dumps(loader.state_at(step))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a state: move the iterator or the dataset; of a loader, set ``step``.

        Args:
            state: Result of ``state_dict``, or of ``state_dict`` of a StreamDataset.

        Raises:
            StateError: It is not a state, or belongs to another order of samples.
        """
        content: Any = state
        if isinstance(state, Mapping) and _KEY in state:
            try:
                content = json.loads(state[_KEY])
            except (TypeError, ValueError) as error:
                raise StateError(f"{state!r:.100}: not a state of StepState ({error})") from None
        step = self._loader().step_of(content)
        if isinstance(self._source, Loader):
            self._step = step
        else:
            self._step = None
            self._source.seek(step)

    def _loader(self) -> Loader:
        source = self._source
        if isinstance(source, Loader):
            return source
        # A dataset finds its ranks late, as the group may begin after it; states of random transforms depend on them.
        return source.loader if isinstance(source, StepIterator) or source.loader.knows_ranks else source.find_ranks()
