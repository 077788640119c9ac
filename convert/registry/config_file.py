"""Strict reading of YAML configurations: every fault becomes a `ConfigError` that names file and field."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from convert.errors import UsageError
from stream.storage.errors import closest
from stream.storage.files import read_whole

MAX_BYTES = 1_000_000
"""A configuration is written by hand; a larger file is of another kind."""

Model = TypeVar("Model", bound=BaseModel)


class ConfigError(UsageError, ValueError):
    """A configuration that cannot be used; the message names the file and the field."""


class Entry(BaseModel):
    """An immutable entry of a configuration, which refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, content: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in content if isinstance(content, dict) else ():
            if key not in known:
                raise ValueError(f"unknown key {key!r:.80}; {closest(key, known, noun='keys')}")
        return content


class _Loader(yaml.BaseLoader):
    """A reader of nulls, texts, lists and mappings; pydantic turns texts into numbers where a field wants one.

    Aliases are refused, because a few of them can stand for more than any memory holds. Repeated keys are refused,
    because only the last would count.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1
            raise yaml.YAMLError(f"aliases (*) are not allowed (line {line}); write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        content = super().construct_mapping(node, deep)
        [(key, count)] = Counter(key.value for key, _ in node.value).most_common(1) or [("", 0)]
        if count > 1:
            raise yaml.YAMLError(f"the mapping of line {node.start_mark.line + 1} has the key {key!r:.80} twice")
        return content


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|)\Z"), ["~", "n", ""])
_Loader.add_constructor("tag:yaml.org,2002:null", lambda loader, node: None)


def read_yaml(path: Path, *, name: str) -> Any:
    """Return the content of a YAML file: texts, nulls, lists and mappings.

    Args:
        path: File.
        name: Name of the file in messages.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or has aliases or repeated keys.
    """
    try:
        return yaml.load(read_whole(path, MAX_BYTES).decode(), _Loader)
    except OSError as fault:
        raise ConfigError(f"{name}: cannot be read: {fault.strerror or fault}") from None
    # RecursionError: nested too deep. ValueError: too large, not UTF-8, or a path that no file can have.
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        raise ConfigError(f"{name}: not a YAML file ({' '.join(str(fault).split())[:200]})") from None


def build(model: type[Model], content: object, *, file: str) -> Model:
    """Build a model from the content of a file.

    Args:
        model: Model.
        content: Content of the file.
        file: Name of the file, for messages.

    Raises:
        ConfigError: The content does not fit the model; lists every fault with its field and the found value.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        faults = []
        for detail in error.errors(include_url=False):
            found = "" if detail["type"] in ("missing", "value_error") else f", found {detail['input']!r:.80}"
            message = detail["msg"].removeprefix("Value error, ") + found
            faults.append(": ".join(filter(None, (file, ".".join(map(str, detail["loc"])), message))))
        raise ConfigError("\n  ".join(faults)) from None
