"""A step of a run, with everything that pictures and pages tell of it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
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
from stream.statistics.normalize import bind_transforms


@dataclass(frozen=True, eq=False)
class ShownStep:
    """A step of a run.

    Attributes:
        step: Step.
        trained: Batch as the loader returns it, with the transforms that were given.
        batch: The same with decoded frames, before any transform.
        seen: The same with decoded frames, after the transforms; ``batch`` if there are none.
        refs: Origin of each row.
        replaced: Rows with the errors of the records that others replace; a row may have several.
        faults: What is wrong with a row, by row.
    """

    step: int
    trained: Batch
    batch: Batch
    seen: Batch
    refs: list[SampleRef]
    replaced: list[tuple[int, RecordError]]
    faults: dict[int, list[str]]

    @property
    def replaced_rows(self) -> frozenset[int]:
        """Rows whose record was replaced."""
        return frozenset(row for row, _ in self.replaced)


def show_step(plan: RankPlan, step: int) -> ShownStep:
    """Make the batch of a step, and look for what is wrong in it; raise as ``RankPlan.make``."""
    made = plan.make(step)
    trained = made.batch
    if plan.run_config.decode == "device":
        # Decoded frames, and the rows that replace damaged ones.
        made = plan.on_host().make(step)
    seen = plain = made
    if plan.run_config.transforms:
        plain = RankPlan(plan.mixture, replace(plan.run_config, transforms=(), decode="host")).make(step)
    refs = plan.mixture.describe(made.rows)
    by_sample = {ref.sample: row for row, ref in enumerate(refs)}
    faults = find_faults(plain.batch, refs, plan.mixture)
    if plan.run_config.transforms:
        for row, texts in find_nonfinite(seen.batch, len(refs)).items():
            faults.setdefault(row, []).extend(f"after the transforms: {text}" for text in texts)
    replaced = [(by_sample[error.sample], error) for error in made.replaced]
    return ShownStep(step, trained, plain.batch, seen.batch, refs, replaced, dict(sorted(faults.items())))


def marks_of(shown: ShownStep) -> dict[str, Any]:
    """Return the arguments of ``draw_sheets`` that mark rows."""
    return {"replaced": shown.replaced_rows, "faults": shown.faults}


def sheet_names(data: OpenMixture) -> dict[str, Any]:
    """Return the arguments of ``draw_sheets`` that name cameras and dimensions."""
    cameras: dict[str, dict[str, tuple[str, ...]]] = {}
    for camera in data.cameras:
        stored = zip(data.datasets, camera.stored, strict=True)
        cameras[camera.frames] = {
            name: tuple(dataset.fields.stored_cameras[number].name for number in numbers)
            for name, (dataset, numbers) in zip(data.names, stored, strict=True)
        }
    actions = zip(data.names, data.spec.actions, strict=True)
    return {"cameras": cameras, "dimensions": {name: vector.names for name, vector in actions}}


def find_transforms(name: str) -> Any:
    """Import what ``--transforms`` names.

    Raises:
        ArgumentError: There is no such module or name.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute.isidentifier():
        raise ArgumentError(f"--transforms {name}: expected MODULE:NAME or FILE.py:NAME")
    try:
        return getattr(_import(place), attribute)
    except Exception as error:  # code of others: any of its errors is this one argument's
        raise ArgumentError(f"--transforms {name}: {type(error).__name__}: {error}") from None


def with_transforms(plan: RankPlan, name: str, saved: SavedTransforms) -> RankPlan:
    """Return a plan whose batches have transforms, and the normalisation of the run at its place among them.

    Args:
        plan: Plan.
        saved: Transforms of the run's ``loader.json``.
        name: ``MODULE:NAME`` or ``FILE.py:NAME``: a transform, a list of transforms, or a function of the loader's
            ``data`` that returns them.

    Raises:
        ArgumentError: There is no such module or name, or it is something else.
    """
    found = find_transforms(name)
    try:
        if callable(found) and not _is_transform(found):
            found = found(plan.mixture)
    except Exception as error:  # code of others: any of its errors is this one argument's
        raise ArgumentError(f"--transforms {name}: {type(error).__name__}: {error}") from None
    transforms: Sequence[Any] = [found] if _is_transform(found) else found
    running = replace(plan.run_config, transforms=transforms)
    bound = bind_transforms(saved.restore(running.transforms), plan.mixture)
    return RankPlan(plan.mixture, replace(running, transforms=bound))


def _is_transform(value: Any) -> bool:
    return not isinstance(value, type) and (hasattr(value, "map") or hasattr(value, "random_map"))


def _import(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Classes of the file find their module by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
