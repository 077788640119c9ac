"""The programs read the roots that the tests of the loader have."""

from tests.stream.conftest import frames_root, oxe_root

__all__ = ["frames_root", "oxe_root"]
