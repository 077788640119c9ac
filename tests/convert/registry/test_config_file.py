import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convert.registry.config_file import MAX_BYTES, ConfigError, Document, dotted, shown
from convert.registry.registry import load_registry

GOOD = """\
datasets:
  mine:
    tfds_name: my_set
    version: 1.0.0
    description: A dataset.
    cameras:
      cam: {path: observation/cam, role: primary, storage: jpeg, shape: [64, 64, 3]}
    instruction: {path: language_instruction, alternatives: [/episode_metadata/text]}
    action:
      - {path: action, dims: 3, select: [0, 1, 2], quantity: ee_position, mode: delta, names: [x, y, z]}
      - {path: action, dims: 1, select: [3], quantity: gripper, mode: absolute, gripper: {open: 1, closed: 0}}
    control_frequency: 5
    offset: 0.6s
    splits: {train: 10}
mixtures:
  both:
    description: Mine and bridge.
    members:
      mine: {weight: 1.5, offset: 3, splits: {train: 'train[:90%]'}}
      bridge: {weight: {size_power: 0.5}}
"""


def read(tmp_path: Path, text: str | bytes) -> Document:
    path = tmp_path / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Document(path, name="my.yaml")


def test_a_document_is_plain_dicts_lists_and_scalars(tmp_path: Path) -> None:
    document = read(tmp_path, "a: [1, 2.5, true, null, 'x', 2024-02-30]\nb: {c: 0.6s}")
    assert document.data == {"a": [1, 2.5, True, None, "x", "2024-02-30"], "b": {"c": "0.6s"}}


def test_an_error_tells_the_line_of_the_innermost_part_that_exists(tmp_path: Path) -> None:
    document = read(tmp_path, "a:\n  b:\n    - x: 1\n    - y: 2\n")
    assert str(document.error("wrong", "a", "b", 1, "z")) == "my.yaml:4: a.b[1].z: wrong"


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "a key twice": ("a: 1\nb: 2\na: 3\n", "my.yaml:3: a: this key is here twice, first in line 1; remove one"),
    "a key twice in braces": ("a: {b: 1, b: 1}\n", "my.yaml:1: a.b: this key is here twice"),
    "an open bracket": ("a: [1, 2\n", "my.yaml:2: not YAML: "),
    "two colons": ("a: b: c\n", "my.yaml:1: not YAML: mapping values are not allowed here"),
    "an anchor": ("a: &x 1\nb: *x\n", "my.yaml:1: anchors and aliases"),
    "an alias": ("a: *x\n", "my.yaml:1: anchors and aliases"),
    "a key that YAML reads as true": ("on: 1\n", "my.yaml:1: the key True is not text; put it in quotes"),
    "a number as key": ("a: {1: 2}\n", "my.yaml:1: a: the key 1 is not text"),
    "a list as key": ("? [a, b]\n: 1\n", "my.yaml:1: 'seq' is not allowed here"),
    "a Python object": (
        "a: !!python/object/apply:os.system [ls]\n",
        "a: 'python/object/apply:os.system' is not allowed",
    ),
    "a private tag": ("a: !mine 1\n", "'!mine' is not allowed here"),
    "a set": ("a: !!set {x, y}\n", "'set' is not allowed here"),
    "binary": ("a: !!binary aGk=\n", "'binary' is not allowed here"),
    "a wrong integer": ("a: !!int x\n", "my.yaml:1: a: cannot be read as a value: 'x'"),
    "a wrong boolean": ("a: !!bool x\n", "my.yaml:1: a: cannot be read as a value: 'x'"),
    "a merge key": ("<<: {a: 1}\n", "'merge' is not allowed here"),
    "an endless integer": ("a: " + "9" * 5000, "my.yaml:1: a: cannot be read as a value: '999"),
    "half a character": ('a: "\\ud800"\n', "cannot be read as a value"),
    "two documents": ("--- 1\n--- 2\n", "not YAML: but found another document"),
    "deep brackets": ("[" * 100_000, "my.yaml:1: nested more than 40 levels deep"),
    "deep dashes": ("- " * 100, "nested more than 40 levels deep"),
    "a control character": ("a: \x01\n", "not YAML: unacceptable character"),
    "another encoding": (b"a: \xff\n", "is not UTF-8 text (byte 3)"),
    "a large file": (b" " * (MAX_BYTES + 1), "has more than the 1,000,000 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_configuration_has_no_use_for_is_refused(tmp_path: Path, case: str) -> None:
    text, message = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_aliases_cannot_blow_a_small_file_up(tmp_path: Path) -> None:
    bomb = "a0: &a0 x\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 20))
    with pytest.raises(ConfigError, match="anchors and aliases"):
        read(tmp_path, bomb)


@pytest.mark.parametrize(("name", "reason"), [("none.yaml", "No such file"), ("", "directory"), ("a\0b", "null byte")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"shown: cannot be read: .*{reason}"):
        Document(tmp_path / name, name="shown")


def test_a_config_error_is_a_value_error_that_knows_file_and_field(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        read(tmp_path, "a: {b: 1, b: 2}")
    assert isinstance(caught.value, ConfigError)
    assert (caught.value.file, caught.value.field) == ("my.yaml", "a.b")


def test_a_place_in_a_file_is_written_with_dots_and_indices() -> None:
    assert dotted(("datasets", "my set", "action", 0, "mode")) == "datasets.'my set'.action[0].mode"


def test_values_are_shown_on_one_line() -> None:
    values: list[object] = ["é\n", [1], {}, 10**5000]
    assert [shown(value) for value in values] == ["'\\xe9\\n'", "a list", "a mapping", "a huge number"]


def test_the_good_file_of_the_fuzz_tests_is_good(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(GOOD)
    assert load_registry(config=[path]).dataset("mine").offset == "0.6s"


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
    for place, length, insert in edits:
        text = text[:place] + insert + text[place + length :]
    path = tmp_path / "my.yaml"
    path.write_bytes(text.encode())
    only_config_errors(path)


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
    place: Any = content
    keys: list[Any] = []
    while isinstance(place, dict | list) and place and (not keys or data.draw(st.booleans())):
        keys.append(data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place)))))
        parent, place = place, place[keys[-1]]
    if isinstance(parent, dict) and data.draw(st.booleans()):
        parent[data.draw(st.text(max_size=6) | st.integers() | st.none())] = value
    else:
        parent[keys[-1]] = value
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    only_config_errors(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200))
def test_no_bytes_give_another_error_than_a_config_error(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "my.yaml"
    path.write_bytes(raw)
    only_config_errors(path)
