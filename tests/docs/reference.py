"""The parts of the documentation that are made from the code, between `<!-- made from the code: NAME -->` and
`<!-- end -->`. Run this file to write them; `test_reference_pages.py` fails while they are not what they should be."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
import typer
from pydantic.fields import FieldInfo

from poise.admin.metrics import families
from poise.cli.main import app
from poise.config.keys import all_keys, replica_keys
from poise.config.replica_section import ReplicaSection
from poise.engine_model.profiles import PROFILES
from poise.health.breaker import TRANSITIONS, BreakerState

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(<!-- made from the code: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_LISTS = {int: "list of whole numbers", str: "list of texts", ReplicaSection: "list of replicas"}


def render(text: str) -> str:
    """`text` of a page with every made part as it should be. Raises `KeyError` for a part that nobody makes."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}", text)


def pages() -> list[Path]:
    """The pages with such parts."""
    return [page for page in sorted((ROOT / "docs").glob("*.md")) if _BLOCK.search(page.read_text())]


def parts_of(text: str) -> set[str]:
    """The names of the made parts in a page."""
    return {match[2] for match in _BLOCK.finditer(text)}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _code(value: object) -> str:
    return f"`{value}`"


def keys_table() -> str:
    rows = (
        [
            _code(key.name),
            type_of(key.field),
            default_of(key.field),
            _code(key.variable),
            _sentence(key.field.description),
        ]
        for key in all_keys().values()
    )
    return _table(["key", "type", "default", "environment variable", "effect"], rows)


def replica_table() -> str:
    rows = (
        [_code(name), type_of(field), default_of(field), _sentence(field.description)]
        for name, field in replica_keys().items()
    )
    return _table(["key", "type", "default", "effect"], rows)


def type_of(field: FieldInfo) -> str:
    """The type in words, with its range."""
    is_union = get_origin(field.annotation) in (Union, UnionType)
    kinds = get_args(field.annotation) if is_union else [field.annotation]
    names = [_kind(kind) for kind in kinds if kind is not type(None)]
    return " ".join([" or ".join(names), *_range(field)])


def _kind(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(map(_code, arguments))
    if origin is tuple:
        item = (get_args(arguments[0]) or arguments)[0]  # without what Annotated adds to it
        return _LISTS[item]
    return _TYPES.get(kind) or ("names and texts" if str in arguments[1:] else "names and models")


def _range(field: FieldInfo) -> list[str]:
    bounds = {type(bound): bound for bound in field.metadata}
    least, most, above = (bounds.get(kind) for kind in (annotated_types.Ge, annotated_types.Le, annotated_types.Gt))
    if least and most:
        return [f"{least.ge} to {most.le}"]
    return [f"from {least.ge}"] if least else [f"above {above.gt}"] if above else []


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    if default is None or default in ([], {}):
        return "unset" if default is None else "empty"
    return _code(str(default).lower() if isinstance(default, bool) else default)


def _sentence(text: str | None) -> str:
    assert text, "every key is described"
    return text[:1].upper() + text[1:]


def metrics_table() -> str:
    rows = (
        [_code(family.name), str(family.kind), ", ".join(map(_code, family.labels)) or "none", family.help]
        for family in families()
    )
    return _table(["metric", "kind", "labels", "meaning"], rows)


def breaker_diagram() -> str:
    """The moves of a breaker, as GitHub draws them; what changes nothing is left out."""
    reasons: dict[tuple[BreakerState, BreakerState], list[str]] = {}
    for (state, event), after in TRANSITIONS.items():
        if after is not state:
            reasons.setdefault((state, after), []).append(event)
    moves = [f"    {state} --> {after}: {' / '.join(why)}" for (state, after), why in reasons.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {BreakerState.CLOSED}", *moves, "```", ""])


def profiles_table() -> str:
    return _table(["profile", "what it is"], ([_code(p.name), p.description] for p in PROFILES.values()))


def commands() -> dict[str, Any]:
    """The commands of `poise` by name."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def flags_table(command: str) -> str:
    rows = []
    for parameter in commands()[command].params:
        name, is_flag = parameter.opts[0], parameter.opts[0].startswith("-")
        if name == "--help":
            continue
        flag = f"{name} {parameter.metavar}" if is_flag and parameter.metavar else parameter.metavar or name
        default = "" if parameter.default is None or parameter.default is False else _code(parameter.default)
        is_list_of_profiles = (command, name) == ("engine", "--profile")
        rows.append([_code(flag), default, "What is simulated: see below." if is_list_of_profiles else parameter.help])
    if not any(default for _, default, _ in rows):
        return _table(["flag", "effect"], ([flag, effect] for flag, _, effect in rows))
    return _table(["flag", "default", "effect"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "keys": keys_table,
    "replica": replica_table,
    "metrics": metrics_table,
    "profiles": profiles_table,
    "breaker": breaker_diagram,
    **{f"flags-{name}": (lambda name=name: flags_table(name)) for name in commands()},  # type: ignore[misc]
}


if __name__ == "__main__":
    for page in pages():
        page.write_text(render(page.read_text()))
