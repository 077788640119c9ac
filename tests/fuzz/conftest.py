from tests.stream.conftest import oxe_root

__all__ = ["oxe_root"]
