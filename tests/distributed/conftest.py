"""The ranks read the root that the loader's tests have; Slurm converts what Beam's runners do."""

from tests.beam_jobs.conftest import dataset, in_memory
from tests.stream.conftest import oxe_root

__all__ = ["dataset", "in_memory", "oxe_root"]
