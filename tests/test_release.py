"""A release has one number, and the import that users write is cheap and has every name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import pairstream
import stream
from convert import __version__

REPOSITORY = Path(__file__).resolve().parents[1]


def test_changelog_and_citation_have_the_number_of_the_release() -> None:
    released = re.findall(r"^## (\d+\.\d+\.\d+)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == __version__
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["version"] == __version__ and citation["license"] == "Apache-2.0"


def test_forms_of_issues_are_of_the_form_that_the_host_reads() -> None:
    forms = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [form.name for form in forms] == ["config.yml", "dataset.yml", "fault.yml"]
    for form in forms[1:]:
        content = yaml.safe_load(form.read_text())
        assert content["name"] and content["description"]
        assert all(field["attributes"]["label"] and field["id"] for field in content["body"])


def test_every_name_of_stream_is_one_of_pairstream_and_the_same_object() -> None:
    assert set(stream.__all__) < set(pairstream.__all__)
    for name in ("make_loader", "load_loader", "Frames", "Vector", "Select", "Workers", "Augment", "digest"):
        assert getattr(pairstream, name) is getattr(stream, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = pairstream.no_such_name


def test_the_import_takes_less_than_half_a_second() -> None:
    code = "import time; began = time.process_time(); import pairstream as ps; print(time.process_time() - began)"
    command = [sys.executable, "-c", code]
    times = [
        float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout)
        for _ in range(2)
    ]
    assert min(times) < 0.5
