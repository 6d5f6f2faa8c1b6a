"""YAML with the line of every value kept, so that an error can say where to look."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from poise.core.errors import ConfigError
from poise.core.yaml_text import NOT_YAML, YamlLoader

Path = tuple[str | int, ...]
"""Where a value stands: keys and list positions from the root."""


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed file: plain values, and the line (from 1) on which each begins."""

    name: str
    values: dict[str, Any]
    lines: dict[Path, int]


def parse_yaml(text: str, name: str) -> YamlFile:
    """Parse a mapping. Raises `ConfigError` for bad syntax, a key given twice, or anything but a mapping."""
    try:
        loader = YamlLoader(text)
        root = loader.get_single_node()
        values = None if root is None else loader.construct_document(root)
        if root is None or values is None:
            return YamlFile(name, {}, {})
        if not isinstance(values, dict):
            kind = "a list" if isinstance(values, list) else "one value"
            raise ConfigError(
                f"{name} holds {kind}, not keys and values",
                hint="begin with a line such as port: 8080",
            )
        return YamlFile(name, values, dict(_walk(root, (), name)))
    except RecursionError:
        raise ConfigError(f"{name}: a value holds itself", hint="take out the alias (*)") from None
    except NOT_YAML as error:
        raise _syntax_error(error, name) from None


def _walk(node: yaml.Node, path: Path, name: str) -> Iterator[tuple[Path, int]]:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in seen:
                raise ConfigError(
                    f"{name}:{line}: key {key!r} is given twice, first on line {seen[key]}", hint="keep one of them"
                )
            seen[key] = line
            yield (*path, key), line
            yield from _walk(value_node, (*path, key), name)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            yield (*path, position), item.start_mark.line + 1
            yield from _walk(item, (*path, position), name)


def _syntax_error(error: Exception, name: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    place = f"{name}:{mark.line + 1}" if mark else name
    said = getattr(error, "problem", None) or "not YAML"
    return ConfigError(
        f"{place}: {said}", hint="check indentation, brackets and quotes on that line and the one before"
    )
