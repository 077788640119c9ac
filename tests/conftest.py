"""What tests of every package need: quiet libraries, and the real episodes that are not part of the repository."""

import contextlib
import importlib
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

# TensorFlow reads it when it is imported, in worker processes too.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Triton, which torch brings where it is built for CUDA, ends the process if it is loaded after TensorFlow.
with contextlib.suppress(ImportError):
    importlib.import_module("triton")

# A shell that starts the tests in the background has Ctrl-C ignored, and every process below inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real TFDS directories (`bridge_dataset/1.0.0`); a test that asks for it is skipped where it is not.

    It lies beside the checkout, in `../shared/data`, or where PAIRSTREAM_SHARED_DATA says.
    """
    folder = Path(os.environ.get("PAIRSTREAM_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (folder / "bridge_dataset" / "1.0.0" / "dataset_info.json").is_file():
        pytest.skip(f"no bridge_dataset/1.0.0 in {folder}; PAIRSTREAM_SHARED_DATA names another folder")
    return folder
