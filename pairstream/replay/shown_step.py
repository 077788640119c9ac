"""A step of a run, with all that pictures and pages show of it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pairstream.replay.faults import find_faults, find_nonfinite
from stream.base.errors import ArgumentError, RecordError
from stream.batch.spec import Batch
from stream.loader.open_mixture import OpenMixture
from stream.loader.rank_plan import RankPlan
from stream.loader.saved import SavedTransforms
from stream.order.reference import SampleRef
from stream.statistics.binding import bind_transforms


@dataclass(frozen=True, eq=False)
class ShownStep:
    """A step of a run.

    Attributes:
        step: Step.
        trained: Batch as the loader returns it, with the run's transforms.
        seen: The batch with decoded frames, after the transforms.
        refs: Origin of each row.
        replaced: Row and error of each unreadable record that another record replaces; a row may have several.
        faults: Faults by row.
    """

    step: int
    trained: Batch
    seen: Batch
    refs: list[SampleRef]
    replaced: list[tuple[int, RecordError]]
    faults: dict[int, list[str]]

    @property
    def replaced_rows(self) -> frozenset[int]:
        """Rows whose record was replaced."""
        return frozenset(row for row, _ in self.replaced)


def show_step(rank_plan: RankPlan, step: int) -> ShownStep:
    """Make the batch of a step, and look for faults in it; raise as ``RankPlan.make`` does."""
    batch_result = rank_plan.make(step)
    trained = batch_result.batch
    if rank_plan.run_config.decode == "device":
        # Decoded frames, and the rows that replace damaged ones.
        batch_result = rank_plan.on_host().make(step)
    plain = batch_result
    if rank_plan.run_config.transforms:
        plain = RankPlan(rank_plan.mixture, replace(rank_plan.run_config, transforms=(), decode="host")).make(step)
    refs = rank_plan.mixture.describe(batch_result.rows)
    by_sample = {sample_ref.sample: row for row, sample_ref in enumerate(refs)}
    faults = find_faults(plain.batch, refs, rank_plan.mixture)
    if rank_plan.run_config.transforms:
        for row, messages in find_nonfinite(batch_result.batch, len(refs)).items():
            faults.setdefault(row, []).extend(f"after the transforms: {message}" for message in messages)
    replaced = [(by_sample[error.sample], error) for error in batch_result.replaced]
    return ShownStep(step, trained, batch_result.batch, refs, replaced, dict(sorted(faults.items())))


def drawing_options(shown: ShownStep, mixture: OpenMixture) -> dict[str, Any]:
    """Return the arguments of ``rows_html`` that mark rows, and name cameras and dimensions."""
    faults = {row: list(messages) for row, messages in shown.faults.items()}
    for row, error in shown.replaced:
        faults.setdefault(row, []).append(f"replaced: {error.reason}")
    cameras: dict[str, dict[str, list[str]]] = {}
    for camera in mixture.cameras:
        names = cameras[camera.frames] = {}
        for name, dataset, numbers in zip(mixture.names, mixture.datasets, camera.stored, strict=True):
            names[name] = [dataset.fields.stored_cameras[number].name for number in numbers]
    actions = mixture.spec.actions
    dimensions = {name: vector.names for name, vector in zip(mixture.names, actions, strict=bool(actions))}
    return {"faults": faults, "cameras": cameras, "dimensions": dimensions}


def find_transforms(name: str) -> Any:
    """Import the object that ``--transforms`` names; raise ArgumentError if it does not exist."""
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute.isidentifier():
        raise ArgumentError(f"--transforms {name}: expected MODULE:NAME or FILE.py:NAME")
    with _errors_of_others(name):
        return getattr(_import(module_name), attribute)


def with_transforms(rank_plan: RankPlan, name: str, saved: SavedTransforms) -> RankPlan:
    """Return a plan whose batches have transforms, and between them the normalisation of the run's ``loader.json``.

    ``name`` is ``MODULE:NAME`` or ``FILE.py:NAME``: a transform, a list of transforms, or a function of the loader's
    ``data`` that returns them. Raises ArgumentError if it does not exist, or is something else.
    """
    imported = find_transforms(name)
    with _errors_of_others(name):
        if callable(imported) and not _is_transform(imported):
            imported = imported(rank_plan.mixture)
    run_config = replace(rank_plan.run_config, transforms=[imported] if _is_transform(imported) else imported)
    transforms = bind_transforms(saved.restore(run_config.transforms), rank_plan.mixture)
    return RankPlan(rank_plan.mixture, replace(run_config, transforms=transforms))


@contextlib.contextmanager
def _errors_of_others(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # code of others: any of its errors is this one argument's
        raise ArgumentError(f"--transforms {name}: {type(error).__name__}: {error}") from None


def _is_transform(candidate: Any) -> bool:
    return not isinstance(candidate, type) and (hasattr(candidate, "map") or hasattr(candidate, "random_map"))


def _import(module_name: str) -> ModuleType:
    if not module_name.endswith(".py"):
        return importlib.import_module(module_name)
    module_spec = importlib.util.spec_from_file_location(Path(module_name).stem, module_name)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    # Classes of the file find their module by its name.
    sys.modules[module_spec.name] = module
    module_spec.loader.exec_module(module)
    return module
