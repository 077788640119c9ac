import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convert.errors import ConfigError
from convert.registry.registry import load_registry
from stream.base.configs import MAX_BYTES, read_yaml
from tests.convert.registry.test_registry import MINE

GOOD = f"""{MINE}    offset: 0.6s
mixtures:
  both:
    description: Mine and bridge.
    members:
      mine: {{weight: 1.5, offset: 3, splits: {{train: 'train[:90%]'}}}}
      bridge: {{weight: {{size_power: 0.5}}}}
"""


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_file_is_read_by_the_core_schema_of_yaml(tmp_path: Path) -> None:
    text = "a: [1, 2.5, true, null, ~, 'null', 2024-02-30]\nb: {on: 0.6s, 1: no, y: '3'}\nc:\n"
    content = read_yaml(written(tmp_path, text))
    assert content == {
        "a": [1, 2.5, True, None, None, "null", "2024-02-30"],
        "b": {"on": "0.6s", "1": "no", "y": "3"},
        "c": None,
    }


def test_a_python_object_is_not_made(tmp_path: Path) -> None:
    assert read_yaml(written(tmp_path, "a: !!python/object/apply:os.system [ls]\n")) == {"a": ["ls"]}


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "a key twice": ("a: 1\nb: 2\na: 3\n", "the mapping of line 1 has the key 'a' twice"),
    "a key twice in braces": ("a:\n  {b: 1, b: 1}\n", "the mapping of line 2 has the key 'b' twice"),
    "an open bracket": ("a: [1, 2\n", "not a YAML file (while parsing"),
    "two colons": ("a: b: c\n", "mapping values are not allowed in this context"),
    "an alias": ("a: &x 1\nb: *x\n", "aliases (*) are not allowed (line 2)"),
    "a list as key": ("? [a, b]\n: 1\n", "unhashable key"),
    "two documents": ("--- 1\n--- 2\n", "but found another document"),
    "deep brackets": ("[" * 100_000, "recursion"),
    "a control character": ("a: \x01\n", "control characters are not allowed"),
    "another encoding": (b"a: \xff\n", "can't decode byte 0xff"),
    "a large file": (b" " * (MAX_BYTES + 1), "larger than 1,000,000 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_configuration_has_no_use_for_is_refused(tmp_path: Path, case: str) -> None:
    text, message = REFUSED[case]
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_registry(config=[path])
    assert str(caught.value).startswith(f"{path}: not a YAML file (")
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "reason"), [("none.yaml", "No such file"), ("", "directory"), ("a\0b", "null byte")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / name
    with pytest.raises(ConfigError, match=f"{re.escape(str(path))}: .*{reason}"):
        load_registry(config=[path])


def test_the_good_file_of_the_fuzz_tests_is_good(tmp_path: Path) -> None:
    assert load_registry(config=[written(tmp_path, GOOD)]).dataset("mine").offset == "0.6s"


def only_config_errors(path: Path) -> None:
    try:
        load_registry(config=[path])
    except ConfigError as fault:
        assert "my.yaml" in str(fault)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(GOOD)),
            st.integers(0, 12),
            st.sampled_from(
                [*"{}[]:,-&*!?|>'\"%@#\n\t ~=<\\", "<<", "\0", "\ud7ff", "\u2028", ".nan", "1e999", "!!int "]
            )
            | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_edit_of_the_text_gives_another_error_than_a_config_error(
    tmp_path: Path, edits: list[tuple[int, int, str]]
) -> None:
    text = GOOD
    for position, length, insert in edits:
        text = text[:position] + insert + text[position + length :]
    only_config_errors(written(tmp_path, text))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["size", "5", "0s", "1e400s", "train[", "steps/x", "/x", "bridge", "..", 10**400, -1, math.nan]),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), children, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=VALUES)
def test_no_value_anywhere_gives_another_error_than_a_config_error(
    tmp_path: Path, data: st.DataObject, value: object
) -> None:
    content = yaml.safe_load(GOOD)
    position: Any = content
    keys: list[Any] = []
    while isinstance(position, dict | list) and position and (not keys or data.draw(st.booleans())):
        keys.append(
            data.draw(st.sampled_from(sorted(position) if isinstance(position, dict) else range(len(position))))
        )
        parent, position = position, position[keys[-1]]
    if isinstance(parent, dict) and data.draw(st.booleans()):
        parent[data.draw(st.text(max_size=6) | st.integers() | st.none())] = value
    else:
        parent[keys[-1]] = value
    only_config_errors(written(tmp_path, yaml.safe_dump(content, allow_unicode=True).encode(errors="surrogatepass")))
