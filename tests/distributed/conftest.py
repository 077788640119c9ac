"""The ranks read the root that the loader's tests have."""

from tests.stream.conftest import oxe_root

__all__ = ["oxe_root"]
