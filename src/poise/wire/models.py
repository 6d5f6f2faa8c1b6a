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


def list_models(entries: Mapping[str, bytes]) -> bytes:
    """The body of `/v1/models` for `entries`."""
    return b'{"object":"list","data":[' + b",".join(entries.values()) + b"]}"
