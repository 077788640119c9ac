"""The loader is measured on the root that its tests have."""

from tests.stream.conftest import oxe_root

__all__ = ["oxe_root"]
