import pytest
from hypothesis import given
from hypothesis import strategies as st

from convert.report import format_table
from stream.base.progress import human_bytes, human_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"), (9.87e9, "9.9 GB"), (8.72e12, "8.72 TB")],
)
def test_sizes_are_in_decimal_units(count: float, text: str) -> None:
    assert human_bytes(count) == text


@given(st.floats(0, 1e18))
def test_a_size_below_a_petabyte_takes_few_characters(count: float) -> None:
    assert len(human_bytes(count)) <= (9 if count < 1e15 else 14)


@pytest.mark.parametrize(
    ("seconds", "text"),
    {0: "0s", 59.4: "59s", 59.6: "1:00", 61: "1:01", 3599: "59:59", 3600: "1:00:00", 360_000: "100:00:00"}.items(),
)
def test_durations_are_read_as_on_a_clock(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_numbers_are_grouped_and_to_the_right_and_texts_to_the_left() -> None:
    table = format_table(["dataset", "pairs", "note"], [["bridge", 1_234_567, ""], ["rt1", 7, "short"]])
    assert table.splitlines() == ["dataset      pairs  note", "bridge   1,234,567", "rt1              7  short"]


def test_a_column_with_one_number_is_to_the_right() -> None:
    assert format_table(["pairs"], [["?"], [1000]]).splitlines() == ["pairs", "    ?", "1,000"]


def test_a_table_without_rows_is_its_header() -> None:
    assert format_table(["a", "b"], []) == "a  b"


@given(st.lists(st.tuples(st.text("ab ", max_size=9), st.integers(-(10**9), 10**9)), max_size=5))
def test_all_numbers_end_in_the_same_column(rows: list[tuple[str, int]]) -> None:
    lines = format_table(["name", "count"], rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == len(rows) + 1


NAMES = st.text("ab_ /", min_size=14, max_size=40).filter(lambda name: name == name.strip())


@given(st.lists(st.tuples(NAMES, st.integers(0, 10**9), NAMES), min_size=1, max_size=5), st.integers(34, 120))
def test_a_table_fits_a_width_and_loses_nothing(rows: list[tuple[str, int, str]], width: int) -> None:
    table = format_table(["dataset", "pairs looked at", "cameras"], rows, width=width)
    assert max(map(len, table.splitlines())) <= width
    letters = "".join(f"{name}{count:,}{cameras}" for name, count, cameras in rows)
    assert {letter: table.count(letter) for letter in "b_/"} == {
        letter: letters.count(letter) + "dataset pairs looked at cameras".count(letter) for letter in "b_/"
    }


def test_a_table_without_a_width_has_one_line_for_each_row() -> None:
    assert len(format_table(["dataset", "robot"], [["a_very_long_name " * 20, "b " * 200]]).splitlines()) == 2


def test_quantities_are_to_the_right_and_versions_to_the_left() -> None:
    table = format_table(["size", "version"], [["1.2 kB", "0.1.0"], ["900 B", "1"], ["-", "-"]])
    assert table.splitlines() == ["  size  version", "1.2 kB  0.1.0", " 900 B  1", "     -  -"]
    assert format_table(["robot"], [["2 arms, one table"], ["1 arm"]]).splitlines()[2] == "1 arm"
