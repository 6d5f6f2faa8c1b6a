"""Policy settings from configuration values: names and types are checked, and a wrong name gets its nearest as hint."""

from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

import msgspec

from poise.core.errors import ConfigError

_Settings = TypeVar("_Settings")


def read_settings(kind: type[_Settings], values: Mapping[str, object], owner: str) -> _Settings:
    """An instance of the settings dataclass `kind`; what `values` does not give keeps its default.

    `owner` is the path of `values` in the configuration, for the `ConfigError` that a wrong name, type or value raises.
    """
    kinds = get_type_hints(kind)
    check_names(values, kinds, owner)
    return kind(**{name: _read_value(kinds[name], value, f"{owner}.{name}") for name, value in values.items()})


def check_names(names: Collection[str], known: Collection[str], owner: str) -> None:
    """Raise `ConfigError` for the first of `names` that is not `known`."""
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            raise ConfigError(
                f"{owner} has no setting {name!r}, known are {', '.join(known) or 'none'}",
                hint=f"did you mean {near[0]!r}?" if near else "take it out",
            )


def _read_value(kind: Any, value: object, owner: str) -> object:
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{owner} is {value!r}", hint=f"give names and values: {', '.join(get_type_hints(kind))}")
        return read_settings(kind, value, owner)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = str(error)
        raise ConfigError(f"{owner} is {value!r}", hint=f"{reason[:1].lower()}{reason[1:]}") from None
