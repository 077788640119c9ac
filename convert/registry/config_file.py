"""Strict reading of YAML configurations: every fault becomes a `ConfigError` that names file and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from convert.errors import UsageError
from stream.storage import configs
from stream.storage.configs import Entry

__all__ = ["ConfigError", "Entry", "build", "read_yaml"]

Model = TypeVar("Model", bound=BaseModel)


class ConfigError(UsageError, ValueError):
    """A configuration that cannot be used; the message names the file and the field."""


def read_yaml(path: Path, *, name: str) -> Any:
    """Return the content of a YAML file.

    Args:
        path: File.
        name: Name of the file in messages.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or has aliases or repeated keys.
    """
    try:
        return configs.read_yaml(path)
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
        raise ConfigError(configs.list_faults(error, where=file)) from None
