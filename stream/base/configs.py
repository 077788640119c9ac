"""Configurations: their folder in the package, the reader of YAML files, and the base of their models."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from yaml.composer import Composer

from stream.base.errors import ArgumentError, closest
from stream.base.reading import read_limited

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
"""Folder of the configurations; in the repository it is a link to ``configs``."""
MAX_BYTES = 1_000_000
"""A configuration is written by hand; a larger file is of another kind."""

_SCALARS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "null": (r"~|null|", lambda text: None),
    "bool": (r"true|false", lambda text: text == "true"),
    "int": (r"[-+]?[0-9]{1,18}", int),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
}
"""Plain scalars of YAML 1.2's core schema, in which ``no``, ``on`` and dates are texts."""


class Entry(BaseModel):
    """An immutable entry of a configuration, which refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, content: Any) -> Any:
        allowed = [field.alias or field_name for field_name, field in cls.model_fields.items()]
        for key in content if isinstance(content, dict) else ():
            if key not in allowed:
                raise ValueError(f"unknown key {key!r:.80}; {closest(str(key), allowed, noun='keys')}")
        return content


def list_faults(error: ValidationError, *, context: str) -> str:
    """Return a line for each fault of a configuration: ``context`` (file or argument), field, reason and value."""
    faults = []
    for fault in error.errors(include_url=False):
        input_text = "" if fault["type"] in ("missing", "value_error") else f", found {fault['input']!r:.80}"
        message = fault["msg"].removeprefix("Value error, ") + input_text
        faults.append(": ".join(filter(None, (context, ".".join(map(str, fault["loc"])), message))))
    return "\n  ".join(faults)


# libyaml where PyYAML has it, because every command reads the registry.
class _YamlLoader(getattr(yaml, "CBaseLoader", yaml.BaseLoader), Composer):  # type: ignore[misc]
    """A YAML loader of texts, numbers, truth values, nulls, lists and mappings, without aliases and repeated keys."""

    # libyaml's method does not call ``compose_node``.
    get_single_node = Composer.get_single_node

    def __init__(self, stream: str) -> None:
        super().__init__(stream)  # type: ignore[call-arg]
        Composer.__init__(self)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node; raise YAMLError at an alias: a few can expand beyond any memory."""
        if self.check_event(yaml.AliasEvent):
            line_number = self.peek_event().start_mark.line + 1
            raise yaml.YAMLError(f"aliases (*) are not allowed (line {line_number}); write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping with texts as keys; raise YAMLError at a repeated key: only the last would count."""
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = self.DEFAULT_SCALAR_TAG
        content = super().construct_mapping(node, deep)
        for key, num_uses in Counter(key.value for key, _ in node.value).most_common(1):
            if num_uses > 1:
                raise yaml.YAMLError(f"the mapping of line {node.start_mark.line + 1} has the key {key!r:.80} twice")
        return content


def _construct(read_scalar: Callable[[str], Any], loader: _YamlLoader, node: yaml.ScalarNode) -> Any:
    return read_scalar(node.value)


for _kind, (_pattern, _read) in _SCALARS.items():
    _tag = f"tag:yaml.org,2002:{_kind}"
    _YamlLoader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), None)
    _YamlLoader.add_constructor(_tag, partial(_construct, _read))


def read_yaml(config_path: Path) -> Any:
    """Return the content of a YAML file; raise OSError if it cannot be read, ValueError if it is not YAML."""
    try:
        return yaml.load(read_limited(config_path, MAX_BYTES).decode(), _YamlLoader)
    # RecursionError: nested too deeply. ValueError: too large, not UTF-8, or a path that no file can have.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not a YAML file ({' '.join(str(error).split())[:200]})") from None


def read_given_yaml(path: Path, *, noun: str, context: str = "") -> Any:
    """Return the content of a YAML file that a caller named; raise ArgumentError if it is not one.

    Args:
        path: Path of the file.
        noun: What the file describes, such as a mixture.
        context: Text in front of the message.
    """
    try:
        return read_yaml(path)
    except OSError as error:
        raise ArgumentError(f"{context}{path}: cannot be read ({error.strerror}); give a {noun}'s YAML file") from None
    except ValueError as error:
        raise ArgumentError(f"{context}{path}: {error}") from None
