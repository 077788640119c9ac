"""YAML files of configuration, read strictly: every fault becomes a `ConfigError` with file, line, field and remedy."""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from convert.errors import UsageError
from stream.storage.errors import closest
from stream.storage.small_file import FileTooLarge, read_whole

MAX_BYTES = 1_000_000
"""A configuration is written by hand; anything larger is another kind of file."""
MAX_SCALAR = 10_000
"""Characters of a value. PyYAML takes the square of the length for a number such as 1:1:1:1."""
MAX_DEPTH = 40
"""Nesting beyond this is a mistake, and the parser recurses once a level."""

FieldPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_TAG = "tag:yaml.org,2002:"
_TIMESTAMP = f"{_TAG}timestamp"
_SCALAR_TAGS = {_TIMESTAMP, *(_TAG + kind for kind in ("str", "int", "float", "bool", "null"))}
_PLAIN_KEY = re.compile(r"[\w-]+")


class ReadableFile(Protocol):
    """A path, or a resource of an installed package."""

    def read_bytes(self) -> bytes:
        """The whole content."""
        ...


class ConfigError(UsageError, ValueError):
    """A configuration that cannot be used.

    file: the file it stands in, or what stands for it (``--datasets``).
    field: the place inside the file, ``datasets.bridge.cameras.image.rol``; empty if it is the file as a whole.
    """

    def __init__(self, message: str, *, file: str = "", field: str = "", line: int | None = None) -> None:
        self.file = file
        self.field = field
        place = file if line is None else f"{file}:{line}"
        super().__init__(": ".join(part for part in (place, field, message) if part))


class Document:
    """The content of one YAML file as plain dicts, lists and scalars, which remembers the line of each field.

    Not accepted, because they are mistakes in a configuration or attacks on the reader: duplicate keys, keys that
    are not text, tags, anchors and aliases, more than one document, deep nesting.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or holds one of the above.
    """

    def __init__(self, path: ReadableFile, *, name: str) -> None:
        self.name = name
        self._lines: dict[FieldPath, int] = {}
        self.data = self._read(path)

    def error(self, message: str, *field: str | int) -> ConfigError:
        """An error at a field of this file; the line is that of the innermost part of it that exists."""
        known = next((field[:end] for end in range(len(field), -1, -1) if field[:end] in self._lines), ())
        return ConfigError(message, file=self.name, field=dotted(field), line=self._lines.get(known))

    def mapping(self, *field: str | int) -> dict[str, Any]:
        """The mapping at a field, empty if nothing is written there.

        Raises:
            ConfigError: something else than a mapping stands there.
        """
        value = self.data
        for key in field:
            value = value[key]
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(f"expected a mapping (`key: value` lines), found {shown(value)}", *field)
        return value

    def validate(self, model: type[Model], value: object, *field: str | int) -> Model:
        """Build a model from what stands at a field.

        Raises:
            ConfigError: naming up to five faults; unknown keys with the closest known one.
        """
        try:
            return model.model_validate(value)
        except ValidationError as fault:
            details = fault.errors(include_url=False)
            faults = [self._fault(model, detail, field) for detail in details[:5]]
        if len(faults) == 1:
            raise faults[0]
        more = [f"and {len(details) - 5} more"] if len(details) > 5 else []
        raise ConfigError("\n  ".join([f"{len(details)} faults", *map(str, faults), *more]), file=self.name)

    def _fault(self, model: type[BaseModel], detail: Any, field: FieldPath) -> ConfigError:
        inside: FieldPath = detail["loc"]
        message, found = detail["msg"].removeprefix("Value error, "), detail["input"]
        match detail["type"]:
            case "extra_forbidden":
                hint = closest(inside[-1], _known_keys(model, inside[:-1]), noun="known keys")
                message = f"unknown key {shown(inside[-1])}; {hint}"
            case "missing":
                message = "missing; add this key"
            case "literal_error":
                known = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
                message = (
                    f"found {shown(found)}, which is not among the choices; {closest(found, known, noun='choices')}"
                )
            case "value_error":
                pass
            case "string_type" if isinstance(found, int | float):
                message = f"expected text, found the number {shown(found)}; put it in quotes"
            case _:
                message = f"{message[:1].lower()}{message[1:]}, found {shown(found)}"
        return self.error(message, *field, *inside)

    def _read(self, path: ReadableFile) -> Any:
        try:
            raw = read_whole(path, MAX_BYTES) if isinstance(path, Path) else path.read_bytes()
        except FileTooLarge:
            message = f"has more than the {MAX_BYTES:,} bytes of any configuration"
            raise ConfigError(message, file=self.name) from None
        except (OSError, ValueError) as fault:
            raise ConfigError(f"cannot be read: {getattr(fault, 'strerror', None) or fault}", file=self.name) from None
        try:
            loader = _Composer(raw.decode("utf-8-sig"))
            node = loader.get_single_node()
        except UnicodeDecodeError as fault:
            raise ConfigError(f"is not UTF-8 text (byte {fault.start:,})", file=self.name) from None
        except yaml.MarkedYAMLError as fault:
            mark = fault.problem_mark or fault.context_mark
            message = f"{'' if isinstance(fault, _NotAllowed) else 'not YAML: '}{fault.problem or fault.context}"
            raise ConfigError(message, file=self.name, line=mark.line + 1 if mark else None) from None
        except (yaml.YAMLError, ValueError) as fault:
            raise ConfigError(f"not YAML: {str(fault).splitlines()[0]}", file=self.name) from None
        return None if node is None else self._plain(node, loader, ())

    def _plain(self, node: yaml.Node, loader: _Composer, field: FieldPath) -> Any:
        self._lines[field] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, loader, field)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self._plain(item, loader, (*field, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, loader, field)

    def _mapping(self, node: yaml.MappingNode, loader: _Composer, field: FieldPath) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._scalar(key_node, loader, field)
            if not isinstance(key, str):
                message = f"the key {shown(key)} is not text; put it in quotes"
                raise ConfigError(message, file=self.name, field=dotted(field), line=line)
            if key in content:
                message = f"this key is here twice, first in line {self._lines[(*field, key)]}; remove one"
                raise ConfigError(message, file=self.name, field=dotted((*field, key)), line=line)
            content[key] = self._plain(value_node, loader, (*field, key))
            self._lines[(*field, key)] = line
        return content

    def _scalar(self, node: yaml.Node, loader: _Composer, field: FieldPath) -> Any:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALAR_TAGS:
            message = (
                f"{shown(node.tag.removeprefix(_TAG))} is not allowed here; write a plain value, or put it in quotes"
            )
            raise ConfigError(message, file=self.name, field=dotted(field), line=line)
        if node.tag == _TIMESTAMP:
            return node.value
        try:
            value = loader.construct_object(node)
            if isinstance(value, str):
                value.encode()
        except (yaml.YAMLError, ValueError, KeyError, IndexError, OverflowError):
            message = f"cannot be read as a value: {shown(node.value)}"
            raise ConfigError(message, file=self.name, field=dotted(field), line=line) from None
        return value


class _NotAllowed(yaml.MarkedYAMLError):
    pass


class _Composer(yaml.SafeLoader):
    """YAML to nodes, without what a configuration has no use for."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases (& and *) are not allowed; write the value out, or put it in quotes"
            raise _NotAllowed(problem=problem, problem_mark=event.start_mark)
        if len(getattr(event, "value", "")) > MAX_SCALAR:
            problem = f"a value has more than {MAX_SCALAR:,} characters"
            raise _NotAllowed(problem=problem, problem_mark=event.start_mark)
        if self.depth >= MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} levels deep"
            raise _NotAllowed(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def dotted(field: Sequence[str | int]) -> str:
    """Write a place inside a file.

    >>> dotted(("datasets", "bridge", "action", 0, "mode"))
    'datasets.bridge.action[0].mode'
    """
    text = ""
    for part in field:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _PLAIN_KEY.fullmatch(part) and part.isascii() else shown(part))
    return text


def shown(value: object) -> str:
    """A value as it may stand in a message: escaped and short."""
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _known_keys(model: type[BaseModel], inside: FieldPath) -> list[str]:
    """The keys that the (nested) model at a place knows."""
    annotation: Any = model
    for part in inside:
        annotation = _without_none(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            annotation = annotation.model_fields[str(part)].annotation
        else:  # dict[key, value] or tuple[value, ...]
            annotation = get_args(annotation)[1 if get_origin(annotation) is dict else 0]
    return list(_without_none(annotation).model_fields)


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    return next(choice for choice in get_args(annotation) if choice is not types.NoneType)
