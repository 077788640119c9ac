"""Tests of the errors of command lines."""

import pytest

from stream.base.arguments import Parser, printable, run_command, whole_number
from stream.base.errors import ArgumentError, FormatError, StreamError, closest
from stream.storage.remote import RemoteError


def _refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    parser = Parser(prog="python -m thing")
    parser.add_argument("--rows", type=whole_number(2))
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(arguments)
    return stopped.value.code, capsys.readouterr().err


def test_an_unknown_option_is_one_line_that_names_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    expected = "error: unrecognized arguments: --row-count; see python -m thing --help\n"
    assert _refused(["--row-count"], capsys) == (2, expected)


@pytest.mark.parametrize("text", ["1", "-2", "2.0", "1_000", "٣", "", "9" * 19])
def test_what_is_no_whole_number_or_too_small_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = _refused([f"--rows={text}"], capsys)
    assert code == 2
    assert message.startswith(f"error: argument --rows: found {text!r}, expected a whole number of at least 2; see ")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ArgumentError("no such\nsplit"), 2, "error: no such split\n"),
        (ArgumentError("a.yaml:\n  b\x1b: unknown\n  c"), 2, "error: a.yaml:\n  b\\x1b: unknown\n  c\n"),
        (RemoteError("no such bucket", refused=True), 2, "error: no such bucket\n"),
        (RemoteError("a request failed"), 1, "error: a request failed\n"),
        (StreamError("a shard is damaged"), 1, "error: a shard is damaged\n"),
        (FormatError("a manifest is damaged"), 1, "error: a manifest is damaged\n"),
        (FileNotFoundError(2, "No such file", "/a"), 1, "error: /a: No such file\n"),
        (OSError(28, "No space left on device"), 1, "error: out: No space left on device\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise error

    assert run_command(work, path="out", interrupted="stopped") == code
    assert capsys.readouterr().err == message


def test_characters_that_move_the_cursor_and_letters_that_a_font_lacks_are_escaped() -> None:
    assert printable("put 红 there\n\x1b[0m") == "put 红 there \\x1b[0m"
    assert printable("plain text, {x} ~", latin=True) == "plain text, {x} ~"
    assert printable("put 红 there\n\x1b[0m", latin=True) == "put \\u7ea2 there \\x1b[0m"
    assert printable("\U0001f916", latin=True) == "\\U0001f916"


def test_the_nearest_names_are_suggested_in_any_case_or_else_all_are_listed() -> None:
    assert closest("BRIGDE", ["Bridge", "kuka"], noun="datasets") == "did you mean 'Bridge'?"
    assert closest("xyz", ["kuka", "bridge"], noun="datasets") == "datasets there: bridge, kuka"
    assert closest("xyz", [], noun="datasets") == "datasets there: none"
    assert closest("xyz", map(str, range(100, 200)), noun="datasets").endswith(", 139 ...")
    assert closest(3.5, ["3.5.0"], noun="versions") == "did you mean '3.5.0'?"
    assert closest("x" * 10**6, ["bridge"], noun="datasets") == "datasets there: bridge"
