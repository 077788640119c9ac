"""The bitwise tests of the loader, against roots that are read in place from a slow store that fails and stalls."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream import Loader, make_loader
from tests.fixtures.object_stores import object_store, seen_through, upload_tree
from tests.stream.loader import test_drawn as drawn
from tests.stream.loader import test_loader as plain
from tests.stream.loader import test_passes as passes
from tests.stream.loader import test_raw as raw
from tests.stream.loader import test_windows as windows

pytestmark = pytest.mark.long

test_workers = plain.test_batches_do_not_depend_on_workers_and_threads
test_without_transforms = plain.test_batches_without_transforms_do_not_depend_on_workers_either
test_ranks = plain.test_the_ranks_batches_in_a_row_are_the_global_batch
test_resume = plain.test_a_run_can_be_resumed_with_other_workers_and_ranks
