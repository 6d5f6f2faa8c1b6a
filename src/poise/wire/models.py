"""Model lists: one replica's `/v1/models` read, and the lists of many replicas merged into the gateway's own."""

from collections.abc import Iterable, Mapping

import msgspec

from poise.core.errors import PoiseError


class ModelListError(PoiseError):
    """An answer to `/v1/models` cannot be used; the message says why."""


class ModelEntry(msgspec.Struct, frozen=True):
    """One model: its id, and its whole JSON object as the replica wrote it."""

    id: str
    json: bytes


class _Listing(msgspec.Struct):
    data: list[msgspec.Raw]


class _Named(msgspec.Struct):
    id: str


_listing = msgspec.json.Decoder(_Listing)
_named = msgspec.json.Decoder(_Named)


def read_models(body: bytes) -> tuple[ModelEntry, ...]:
    """The entries of one replica's list, in its order. Raises `ModelListError`."""
    try:
        entries = [bytes(raw) for raw in _listing.decode(body).data]
        return tuple(ModelEntry(_named.decode(entry).id, entry) for entry in entries)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelListError(
            f"the model list is not an OpenAI model list: {error}",
            hint="check that the url is an engine's root address",
        ) from None


def merge_models(lists: Iterable[Iterable[ModelEntry]]) -> dict[str, bytes]:
    """Id -> JSON object: each id once, in the order first seen, as the first replica wrote it."""
    entries: dict[str, bytes] = {}
    for models in lists:
        for model in models:
            entries.setdefault(model.id, model.json)
    return entries


def alias_entries(models: Mapping[str, bytes], aliases: Mapping[str, Iterable[str]]) -> dict[str, bytes]:
    """Alias -> JSON object for each alias that stands for one of `models`: that model's own, under another name.

    A name that is a model's own stays what it is.
    `root` says which model it is, and `owned_by` that the name is the gateway's.
    """
    entries = {}
    for alias, targets in aliases.items():
        target = next((model for model in targets if model in models), None)
        if target is not None and alias not in models:
            entry = msgspec.json.decode(models[target])
            entries[alias] = msgspec.json.encode(entry | {"id": alias, "root": target, "owned_by": "poise"})
    return entries


def list_models(entries: Mapping[str, bytes]) -> bytes:
    """The body of `/v1/models` for `entries`."""
    return b'{"object":"list","data":[' + b",".join(entries.values()) + b"]}"
