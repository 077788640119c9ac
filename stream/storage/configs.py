"""Configurations: the folder of those that the package brings, and the reader of YAML files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from stream.storage.files import read_whole

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
"""Folder of the configurations; in the repository it is a link to ``configs``."""
MAX_BYTES = 1_000_000
"""A configuration is written by hand; a larger file is of another kind."""


class YamlLoader(yaml.BaseLoader):
    """A YAML loader that reads every value as text, and refuses aliases and repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node; raise YAMLError at an alias: a few can expand beyond any memory."""
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1
            raise yaml.YAMLError(f"aliases (*) are not allowed (line {line}); write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping; raise YAMLError at a repeated key: only the last would count."""
        content = super().construct_mapping(node, deep)
        for key, count in Counter(key.value for key, _ in node.value).most_common(1):
            if count > 1:
                raise yaml.YAMLError(f"the mapping of line {node.start_mark.line + 1} has the key {key!r:.80} twice")
        return content


def read_yaml(path: Path, *, loader: type[YamlLoader] = YamlLoader) -> Any:
    """Return the content of a YAML file; raise OSError if it cannot be read, ValueError if it is not YAML."""
    try:
        return yaml.load(read_whole(path, MAX_BYTES).decode(), loader)
    # RecursionError: nested too deeply. ValueError: too large, not UTF-8, or a path that no file can have.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not a YAML file ({' '.join(str(error).split())[:200]})") from None
