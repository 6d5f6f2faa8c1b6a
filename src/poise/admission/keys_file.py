"""Reads the content of a keys file. No message ever shows a key, nor a line of the file."""

import re
from collections.abc import Mapping
from hashlib import sha256

import yaml

from poise.admission.keys import KeyRing
from poise.core.errors import ConfigError

WITHOUT_EFFECT: Mapping[str, object] = {
    "models": ["*"],
    "requests_per_s": None,
    "tokens_per_min": None,
    "max_concurrency": None,
    "priority": 0,
}
"""Documented fields that this version does not apply yet, with the one value that asks for nothing."""

_HASHED_PREFIX = "sha256:"
_HASHED = re.compile(r"sha256:[0-9A-Fa-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KEY = re.compile(r"[!-~]+")


def parse_keys(text: str) -> KeyRing:
    """The keys of `text`, YAML or JSON: `{"keys": [{"name": "team-a", "key": "sk-..."}]}`.

    A key is given plain or as `sha256:` and its digest in hex. Raises `ConfigError` for anything else.
    """
    entries = _entries(text)
    names: dict[bytes, str] = {}
    for number, entry in enumerate(entries, start=1):
        name, digest = _entry(entry, number)
        if name in names.values():
            raise ConfigError(f"two keys are named {name!r}", hint="give each key a name of its own")
        if digest in names:
            raise ConfigError(f"keys {names[digest]!r} and {name!r} are the same", hint="give each caller its own key")
        names[digest] = name
    return KeyRing(names)


def _entries(text: str) -> list[object]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
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


def _entry(entry: object, number: int) -> tuple[str, bytes]:
    """Name and digest of the key that is `number`th in the file."""
    if not isinstance(entry, dict):
        raise ConfigError(f"key {number} is not a mapping", hint="each key has a name and a key")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"key {number} has no usable name", hint="use 1 to 63 letters, digits, dots, dashes or underscores"
        )
    _check_fields(name, entry)
    return name, _digest(name, entry.get("key"))


def _check_fields(name: str, entry: Mapping[object, object]) -> None:
    for field, value in entry.items():
        if field in ("name", "key"):
            continue
        if field not in WITHOUT_EFFECT:  # not shown: a slip of the indent makes a key of the file a field
            raise ConfigError(
                f"key {name!r} has an unknown field", hint=f"known are name, key, {', '.join(WITHOUT_EFFECT)}"
            )
        if value != WITHOUT_EFFECT[str(field)]:
            raise ConfigError(
                f"key {name!r} sets {field}, which is not supported yet",
                hint=f"take {field} out of the keys file",
            )


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
