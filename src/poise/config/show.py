"""Prints a configuration as YAML that could be used as the file, with the source of each value beside it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from poise.config.load import LoadedConfig
from poise.config.yaml_file import Path

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@(?!\d+['\"\s,}])")
"""User and password in a URL; a rank after the port looks alike, but nothing follows it."""
_COMMENT_COLUMN = 48
_NAMES = (("models", "aliases"), ("models", "fallbacks"))
"""Mappings whose keys are the operator's own: they are shown in one line."""


def show_config(loaded: LoadedConfig) -> str:
    """Every key, its value and its source. What follows `://` as user and password is masked."""
    return "".join(f"{line}\n" for line in _lines(loaded, loaded.settings.model_dump(mode="json"), (), 0))


def _lines(loaded: LoadedConfig, values: Mapping[str, Any], path: Path, depth: int) -> Iterator[str]:
    for key, value in values.items():
        here = (*path, key)
        label = f"{'  ' * depth}{key}:"
        if isinstance(value, dict) and value and here not in _NAMES:
            yield label
            yield from _lines(loaded, value, here, depth + 1)
        elif key == "replicas" and value:
            yield label
            for position, replica in enumerate(value):
                known = {name: said for name, said in replica.items() if said not in (None, False, [], {})}
                yield _commented(f"  - {_inline(known)}", loaded.source((*here, position)))
        else:
            yield _commented(f"{label} {_inline(value)}", loaded.source(here))


def _inline(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).strip().removesuffix("\n...")
    return _CREDENTIALS.sub("***@", text)


def _commented(text: str, source: str) -> str:
    return f"{text:<{_COMMENT_COLUMN}}  # {source}"
