"""The faults happen to the root that the tests of the loader have."""

from tests.bench.conftest import refused
from tests.stream.conftest import oxe_root

__all__ = ["oxe_root", "refused"]
