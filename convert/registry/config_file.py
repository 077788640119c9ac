"""Strict reading of YAML configurations: every fault becomes a `ConfigError` that names file and field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from convert.errors import UsageError
from stream.storage import configs
from stream.storage.errors import closest

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


class _Loader(configs.YamlLoader):
    """A reader of nulls, texts, lists and mappings; pydantic turns texts into numbers where a field wants one."""


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
        return configs.read_yaml(path, loader=_Loader)
    except OSError as fault:
        raise ConfigError(f"{name}: cannot be read: {fault.strerror or fault}") from None
    except ValueError as fault:
        raise ConfigError(f"{name}: {fault}") from None


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
