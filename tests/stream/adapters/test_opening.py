"""Arguments of all adapters: the choice of the normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, digest
from stream.adapters import octo, openpi, openvla


@pytest.mark.parametrize(("value", "same"), [(1, True), (np.True_, True), (0, False), (np.False_, False)])
def test_numbers_and_numpy_choose_the_normalisation_as_bools_do(frames_root: Path, value: Any, same: bool) -> None:
    batches = (
        openvla.loader(frames_root, "bridge", batch_size=4, normalize=each).batch_at(0) for each in (value, same)
    )
    assert len({digest(batch) for batch in batches}) == 1


@pytest.mark.parametrize("value", [None, "yes", "q01_q99", 2, 1.0, [], object])
def test_another_normalisation_is_an_error(frames_root: Path, value: Any) -> None:
    for open_adapter in (openpi.loader, openvla.loader, octo.loader):
        with pytest.raises(ArgumentError, match=r"normalize=.*; expected True for the statistics of the data"):
            open_adapter(frames_root, "bridge", batch_size=4, normalize=value)
