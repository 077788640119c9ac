"""Errors of command lines."""

import pytest

from stream.arguments import Parser, whole


def _refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    parser = Parser(prog="python -m thing")
    parser.add_argument("--rows", type=whole(2))
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(arguments)
    return stopped.value.code, capsys.readouterr().err


def test_an_unknown_option_is_one_line_that_names_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = "error: unrecognized arguments: --row-count; see python -m thing --help\n"
    assert _refused(["--row-count"], capsys) == (2, wanted)


@pytest.mark.parametrize("text", ["1", "-2", "2.0", "1_000", "٣", "", "9" * 19])
def test_what_is_no_whole_number_or_too_small_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = _refused([f"--rows={text}"], capsys)
    assert code == 2
    assert told.startswith(f"error: argument --rows: found {text!r}, expected a whole number of at least 2; see ")
