"""`poise policies`: which placement rules there are, and the settings of each."""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any

import typer

from poise.routing.registry import ALIASES, DEFAULT_POLICY, POLICIES


def policies(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """List the placement policies, their settings with defaults, and other names they are known by."""
    rows = [
        {
            "name": name,
            "default": name == DEFAULT_POLICY,
            "summary": entry.summary,
            "settings": dict(_settings(entry.settings())) if entry.settings else {},
            "aliases": [alias for alias, meant in ALIASES.items() if meant == name],
        }
        for name, entry in POLICIES.items()
    ]
    typer.echo(json.dumps({"policies": rows}, indent=2) if as_json else "\n".join(_text(row) for row in rows))


def _settings(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(values):
        value = getattr(values, field.name)
        if is_dataclass(value):
            yield from _settings(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def _text(row: dict[str, Any]) -> str:
    lines = [f"{row['name']:<16}{row['summary']}{' (default)' if row['default'] else ''}"]
    for title in ("settings", "aliases"):
        if row[title]:
            said = [f"{k}={v}" for k, v in row[title].items()] if title == "settings" else row[title]
            lines.append(f"{'':<16}{title}: {', '.join(said)}")
    return "\n".join(lines)
