"""Reads the content of a keys file. No message ever shows a key, nor a line of the file."""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from math import inf

import yaml

from poise.admission.api_key import LEAST_PRIORITY, MOST_PRIORITY, ApiKey
from poise.admission.keys import KeyRing
from poise.core.errors import ConfigError
from poise.core.yaml_text import NOT_YAML, YamlLoader

_HASHED_PREFIX = "sha256:"
_HASHED = re.compile(r"sha256:[0-9A-Fa-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KEY = re.compile(r"[!-~]+")


def parse_keys(text: str) -> KeyRing:
    """The keys of `text`, YAML or JSON: `{"keys": [{"name": "team-a", "key": "sk-..."}]}`.

    A key is given plain or as `sha256:` and its digest in hex. Raises `ConfigError` for anything else.
    """
    entries = _entries(text)
    keys: dict[bytes, ApiKey] = {}
    names: set[str] = set()
    for number, entry in enumerate(entries, start=1):
        key, digest = _entry(entry, number)
        if key.name in names:
            raise ConfigError(f"two keys are named {key.name!r}", hint="give each key a name of its own")
        if digest in keys:
            raise ConfigError(
                f"keys {keys[digest].name!r} and {key.name!r} are the same", hint="give each caller its own key"
            )
        names.add(key.name)
        keys[digest] = key
    return KeyRing(keys)


def _entries(text: str) -> list[object]:
    try:
        content = yaml.load(text, Loader=YamlLoader)
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}"
        raise ConfigError(f"keys file is not YAML or JSON{where}", hint="check the quotes and the indents") from None
    entries = content.get("keys") if isinstance(content, dict) and len(content) == 1 else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            "keys file does not hold a list of keys",
            hint='write it as {"keys": [{"name": "team-a", "key": "sk-..."}]}',
        )
    return entries


def _entry(entry: object, number: int) -> tuple[ApiKey, bytes]:
    """The key that is `number`th in the file, and its digest."""
    if not isinstance(entry, dict):
        raise ConfigError(f"key {number} is not a mapping", hint="each key has a name and a key")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"key {number} has no usable name", hint="use 1 to 63 letters, digits, dots, dashes or underscores"
        )
    if not entry.keys() <= {"name", "key", *FIELDS}:  # not shown: a slip of the indent makes a key of the file a field
        raise ConfigError(f"key {name!r} has an unknown field", hint=f"known are name, key, {', '.join(FIELDS)}")
    given = {field: value for field, value in entry.items() if field in FIELDS and value is not None}
    for field, value in given.items():
        allowed, is_right = _RIGHTS[field]
        if not is_right(value):  # not shown either
            raise ConfigError(f"key {name!r} has {field} that cannot be read", hint=f"{field} is {allowed}")
    if "models" in given:
        given["models"] = tuple(given["models"])
    return ApiKey(name, **given), _digest(name, entry.get("key"))


def _is_whole(value: object, least: int, most: float = inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf


def _are_models(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(model, str) and model for model in value)


_RIGHTS: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "models": ('a list of model names, or ["*"] for all', _are_models),
    "requests_per_s": ("a number above 0", _is_rate),
    "tokens_per_min": ("a whole number from 1", lambda value: _is_whole(value, 1)),
    "max_concurrency": ("a whole number from 1", lambda value: _is_whole(value, 1)),
    "priority": (
        f"a whole number from {LEAST_PRIORITY} to {MOST_PRIORITY}",
        lambda value: _is_whole(value, LEAST_PRIORITY, MOST_PRIORITY),
    ),
}
"""What each field may hold, in words and as a check. `null` is as if it were left out."""
FIELDS = tuple(_RIGHTS)
"""What an entry may say besides name and key."""


def _digest(name: str, key: object) -> bytes:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ConfigError(
            f"key {name!r} is not usable as a key",
            hint="give text of visible ASCII characters, in quotes if it is all digits",
        )
    if not key.startswith(_HASHED_PREFIX):
        return sha256(key.encode()).digest()
    if not _HASHED.fullmatch(key):
        raise ConfigError(f"key {name!r} is not a SHA-256 digest", hint="write sha256: and 64 hex digits")
    return bytes.fromhex(key.removeprefix(_HASHED_PREFIX))
