"""The examples train on the root that the loader's tests have."""

from tests.stream.conftest import frames_root, oxe_root

__all__ = ["frames_root", "oxe_root"]
