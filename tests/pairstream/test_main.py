from __future__ import annotations

import pytest

from pairstream.__main__ import main
from stream.base.errors import EXIT_USAGE


@pytest.mark.parametrize(
    ("word", "command"), [("repair", "verify"), ("visualize", "browse"), ("download", "fetch"), ("exprot", "export")]
)
def test_a_word_that_is_no_command_leads_to_the_command_that_does_it(
    word: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "ROOT"]) == EXIT_USAGE
    assert capsys.readouterr().err == f"error: no command '{word}'; did you mean '{command}'?\n"
