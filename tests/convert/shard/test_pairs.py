import pytest
from hypothesis import given
from hypothesis import strategies as st

from convert.errors import UsageError
from convert.shard.pairs import check_frames, check_offset, first_steps, frame_offsets, offset_in_steps

OFFSETS = st.integers(1, 10_000)
FRAMES = st.one_of(
    st.sampled_from(["endpoints", "all"]),
    st.integers(1, 10_000).map("stride:{}".format),
    st.integers(2, 64).map("fixed:{}".format),
)


@given(OFFSETS)
def test_a_number_of_steps_is_taken_as_it_is(steps: int) -> None:
    assert offset_in_steps(steps, None, dataset_name="d") == steps
    assert offset_in_steps(f" {steps} ", 3.0, dataset_name="d") == steps


@given(OFFSETS, st.sampled_from([1.0, 2.5, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0]))
def test_the_seconds_of_a_number_of_steps_give_these_steps_back(steps: int, rate: float) -> None:
    assert offset_in_steps(f"{steps / rate:.9f}s", rate, dataset_name="d") == steps


@pytest.mark.parametrize(
    ("text", "rate", "steps"),
    [("0.6s", 5.0, 3), ("12s", 3.0, 36), (".5s", 10.0, 5), ("0.5 s", 3.0, 2), ("0.49s", 3.0, 1), ("0.5s", 5.0, 3)],
)
def test_seconds_are_rounded_to_the_nearest_step_and_halves_up(text: str, rate: float, steps: int) -> None:
    assert offset_in_steps(text, rate, dataset_name="d") == steps


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1.5", "0.6", "1e3s", "5 steps", "0x5", "٣", "+5", "nan", "infs", "9" * 5000]
)
def test_an_offset_in_no_known_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is neither a number of steps"):
        offset_in_steps(text, 5.0, dataset_name="bridge")
    with pytest.raises(UsageError, match=r"--offset .* is neither a number of steps"):
        check_offset(text)


@pytest.mark.parametrize("text", ["5", "0.6s", "12s", "100000"])
def test_only_the_form_of_an_offset_is_checked_before_the_rate_is_known(text: str) -> None:
    assert check_offset(text) == text


def test_seconds_need_a_rate() -> None:
    with pytest.raises(UsageError, match=r"kuka: offset '0\.6s' is in seconds, but this dataset has no fixed rate"):
        offset_in_steps("0.6s", None, dataset_name="kuka")


@pytest.mark.parametrize(("text", "rate"), [("0", None), ("10001", None), ("0.05s", 5.0), ("999999999s", 1e6)])
def test_an_offset_out_of_range_says_how_many_steps_it_is(text: str, rate: float | None) -> None:
    with pytest.raises(UsageError, match=r"is \d+ steps, expected 1 to 10000"):
        offset_in_steps(text, rate, dataset_name="d")


@given(FRAMES, OFFSETS)
def test_the_stored_frames_go_from_the_first_to_the_last_in_order(frames: str, offset: int) -> None:
    offsets = frame_offsets(frames, offset)
    assert (offsets[0], offsets[-1]) == (0, offset)
    assert list(offsets) == sorted(offsets)


@given(OFFSETS)
def test_all_stores_every_frame_once(offset: int) -> None:
    assert frame_offsets("all", offset) == tuple(range(offset + 1))


@given(st.integers(1, 500), OFFSETS)
def test_a_stride_is_kept_but_for_the_last_frame(stride: int, offset: int) -> None:
    *regular, last = frame_offsets(f"stride:{stride}", offset)
    assert regular == list(range(0, offset, stride))
    assert last == offset


@given(st.integers(2, 200), OFFSETS)
def test_a_fixed_number_of_frames_is_spaced_evenly_to_half_a_step(count: int, offset: int) -> None:
    offsets = frame_offsets(f"fixed:{count}", offset)
    assert len(offsets) == count
    assert all(abs(actual - i * offset / (count - 1)) <= 0.5 for i, actual in enumerate(offsets))


WRONG_STRIDES = ["stride", "stride:", "stride:0", "stride:00", "stride:-1", "stride:" + "9" * 5000]


@pytest.mark.parametrize("text", ["", "ends", "all ", "fixed:1", "fixed:01", "fixed:10001", "fixed:²", *WRONG_STRIDES])
def test_frames_in_no_known_form_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is none of: endpoints, all, stride:S"):
        check_frames(text)


@given(st.integers(0, 300), st.integers(1, 300))
def test_a_pair_starts_at_every_step_that_has_its_last_frame_inside_the_episode(num_steps: int, offset: int) -> None:
    assert list(first_steps(num_steps, offset)) == [t for t in range(num_steps) if t + offset < num_steps]
