import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.base.random_numbers import make_key
from stream.order.shuffle import permute


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_every_place_is_taken_exactly_once(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@given(size=st.integers(1, 2**60), key=st.integers(0, 2**64 - 1), data=st.data())
def test_large_domains_stay_in_range_and_apart(size: int, key: int, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True))
    positions = permute(np.array(index), size, key)
    assert positions.min() >= 0
    assert positions.max() < size
    assert len(set(positions.tolist())) == len(index)


def test_elements_of_one_call_do_not_depend_on_each_other() -> None:
    rng = np.random.default_rng(0)
    size = rng.integers(1, 10**9, 500)
    index = (rng.random(500) * size).astype(np.int64)
    key = rng.integers(0, 2**63, 500).astype(np.uint64)
    alone = [permute(index[i : i + 1], size[i : i + 1], key[i : i + 1])[0] for i in range(500)]
    assert permute(index, size, key).tolist() == alone


@pytest.mark.parametrize("size", [5, 8, 12, 100])
def test_over_many_keys_every_index_goes_everywhere_equally_often(size: int) -> None:
    keys = 2000
    positions = np.array([permute(np.arange(size), size, make_key("test", number)) for number in range(keys)])
    counts = np.array([np.bincount(positions[:, index], minlength=size) for index in range(size)])
    chi_squared = ((counts - keys / size) ** 2 / (keys / size)).sum()
    freedom = (size - 1) ** 2
    assert chi_squared < freedom + 5 * np.sqrt(2 * freedom)


def test_neighbours_do_not_stay_neighbours() -> None:
    positions = permute(np.arange(100_000), 100_000, make_key(0, "bridge", 0))
    assert (np.abs(np.diff(positions)) == 1).mean() < 1e-3


def test_keys_of_other_parts_are_others() -> None:
    assert len({make_key(a, b) for a in range(50) for b in range(50)}) == 2500
    assert make_key(1, 23) != make_key(12, 3)
