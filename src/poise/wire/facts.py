"""Reads the few facts that placement needs from a request's body and keys. Never raises: the unreadable is unknown.

A body that the engine will refuse still goes to an engine, whose own error the caller should see.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
import xxhash
from msgspec import Raw

from poise.core.request import RequestFacts
from poise.wire.body_schema import (
    FIELD_DECODERS,
    Body,
    Content,
    Message,
    Part,
    decode_body,
    decode_messages,
    decode_raw_body,
    decode_text,
)

SESSION_HEADERS = (b"x-session-id", b"x-session-affinity", b"x-claude-code-session-id", b"session-id", b"session_id")
"""Headers that name a conversation, lower case; the first that is present counts."""
USER_HEADERS = (b"x-user-id", b"x-tenant-id")
"""Headers that name a user or tenant, lower case; the first that is present counts."""

BYTES_PER_TOKEN = 4
"""The field's usual figure for English text."""
PREFIX_BLOCK_BYTES = 256
"""Least first turn that makes a session by itself. Below one prefix block there is no cache worth keeping, and
identical tiny prompts ("hello", a health check, a benchmark's constant) would all go to one replica."""
COMPLETION_HEAD_BYTES = 4 * PREFIX_BLOCK_BYTES
"""A completions prompt has no turns: a conversation in it grows at its end only, so its head stands for the first turn.
Four blocks tell conversations apart behind a short system prompt; a prompt that is still shorter has at most 256
tokens of cache to lose."""
DECODED_BODY_BYTES = 4 * 1024 * 1024
"""Larger bodies carry media: a million tokens of text fit below. Their prompt is not decoded."""
DECODED_OBJECTS = 32_768
"""A prompt in a body with more braces than this is known by its size and head only: it costs the time of its bytes to
skip it, but up to half a microsecond, and a hundred bytes of memory, to make each object of `[{},{},...]`. A megabyte
of program text has fewer."""
UNCOUNTED_BYTES = 3 * DECODED_OBJECTS
"""A body of this size has no room for so many."""
DECODED_VALUE_BYTES = 64 * 1024
"""A name or key that is longer is not decoded: nobody's is."""
MODEL_NAME_CHARS = 256
"""A longer name is cut: no model is called so, and what a caller invents must not fill logs and memory."""
OUTPUT_LIMIT_TOKENS = 2**31
"""Larger limits count as this, to keep sums of them exact."""

_NUMBER_STARTS = frozenset(b"%c" % digit for digit in b"-0123456789")

_Prompt = tuple[int, list[bytes]]
"""Prompt tokens, and the texts and media of the first turn in order, empty if the request has no turns."""


_SMALL_FIELDS = (
    "model", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", "prompt_cache_key", "session_id",
    "user", "previous_response_id",
)  # fmt: skip
_UNREADABLE = (msgspec.MsgspecError, RecursionError)
_hash = xxhash.xxh3_64_intdigest


def facts_from_json(body: bytes, session_key: bytes | None, user_key: bytes | None) -> RequestFacts:
    """The facts of a request with a JSON `body`; the keys are the values of its session and user headers.

    The session is the session header, else the body's `prompt_cache_key` or `session_id`, else user and first turn
    together, else the first turn alone if it is long enough. Media count for the first turn but not as prompt tokens.
    """
    fields, prompt = _decode(body)
    tokens, first_turn = prompt or _read_prompt(fields)
    session_key = session_key or _key(fields.prompt_cache_key) or _key(fields.session_id)
    session = _hash(session_key) if session_key else _turn_session(first_turn, user_key or _key(fields.user))
    limit = fields.max_completion_tokens or fields.max_tokens or fields.max_output_tokens
    if limit is not None:
        limit = min(limit, OUTPUT_LIMIT_TOKENS) if limit > 0 else None
    tokens += len(fields.tools) // BYTES_PER_TOKEN
    model, response = _short(fields.model) or None, fields.previous_response_id
    return RequestFacts(model, fields.stream is True, session, tokens, limit, response)


def facts_without_json(session_key: bytes | None, model: str | None = None) -> RequestFacts:
    """The facts of a request whose body is no JSON, such as a form. A user key names no conversation by itself."""
    return RequestFacts(_short(model), session=_hash(session_key) if session_key else None)


def _short(model: str | None) -> str | None:
    return model if model is None or len(model) <= MODEL_NAME_CHARS else f"{model[:MODEL_NAME_CHARS]}\u2026"


def _turn_session(first_turn: list[bytes], user_key: bytes | None) -> int | None:
    """Chained hash of the first turn, ended with the user if there is one: a text and its only part are the same."""
    fingerprint = size = 0
    for piece in first_turn:
        fingerprint = _hash(piece, fingerprint)
        size += len(piece)
    if size and user_key:
        return _hash(user_key, fingerprint)
    return fingerprint if size >= PREFIX_BLOCK_BYTES else None


def _decode(body: bytes) -> tuple[Body, _Prompt | None]:
    """What can be read of a body; and its prompt, if that is not read but only what can be told from outside."""
    if len(body) > UNCOUNTED_BYTES and (len(body) > DECODED_BODY_BYTES or body.count(b"{") > DECODED_OBJECTS):
        return _decode_small_fields(body)
    try:
        return decode_body(body), None
    except _UNREADABLE:
        return _decode_by_field(body), None


def _decode_small_fields(body: bytes) -> tuple[Body, _Prompt]:
    """As `_decode`, of a body of which no more shall be read."""
    try:
        raw: Any = decode_raw_body(body)
    except _UNREADABLE:
        return Body(), (0, [])
    fields = _decode_fields(raw, _SMALL_FIELDS, DECODED_VALUE_BYTES)
    if len(body) > DECODED_BODY_BYTES:
        return fields, ((len(raw.tools) + len(raw.query) + len(raw.documents)) // BYTES_PER_TOKEN, [])
    head = memoryview(raw.messages or raw.input or raw.prompt)[:COMPLETION_HEAD_BYTES]
    return fields, (len(body) // BYTES_PER_TOKEN, [bytes(head)])


def _decode_by_field(body: bytes) -> Body:
    """What can be read of a body in which some field cannot."""
    try:
        raw = decode_raw_body(body)
    except _UNREADABLE:
        return Body()
    return _decode_fields(raw, FIELD_DECODERS, len(body))


def _decode_fields(raw: Any, names: Iterable[str], most_bytes: int) -> Body:
    """The fields called `names`, but none that is longer than `most_bytes`."""
    known: dict[str, Any] = {}
    for name in names:
        value = getattr(raw, name)
        if value and len(value) <= most_bytes:
            with suppress(*_UNREADABLE):
                known[name] = FIELD_DECODERS[name].decode(value)
    return Body(**known)


def _key(value: Raw) -> bytes | None:
    """Text of a JSON string or number, None for anything else."""
    if not 0 < len(value) <= DECODED_VALUE_BYTES:
        return None
    text = bytes(value)
    if text[:1] == b'"':
        with suppress(*_UNREADABLE):
            return decode_text(text).encode() or None
    return text if text[:1] in _NUMBER_STARTS else None


def _read_prompt(fields: Body) -> _Prompt:
    if fields.messages is not None:
        return _read_messages(fields.messages, fields.system)
    with suppress(*_UNREADABLE):
        if fields.prompt:
            return _read_input(bytes(fields.prompt), None, COMPLETION_HEAD_BYTES)
        if fields.input:
            return _read_input(bytes(fields.input), fields.instructions, None)
    return (len(fields.query) + len(fields.documents)) // BYTES_PER_TOKEN, []


def _read_input(data: bytes, system: str | None, head: int | None) -> _Prompt:
    """A `prompt` or `input`: text, token ids, messages, or a batch of texts or of lists of ids, which has no turns.

    `head` is how many bytes of it stand for the first turn, None for all.
    """
    if data[:1] == b'"':
        pieces = [text.encode() for text in (system, decode_text(data)) if text]
        return sum(map(len, pieces)) // BYTES_PER_TOKEN, [piece[:head] for piece in pieces]
    if data[:1] != b"[":
        return 0, []
    item = data[1:].lstrip()[:1]
    if item == b"{":
        return _read_messages(decode_messages(data), system)
    if item == b'"':
        return len(data) // BYTES_PER_TOKEN, []
    tokens = 0 if item == b"]" else data.count(b",") + 1
    return tokens, [] if item == b"[" else [data[:head]]


def _read_messages(messages: list[Message], system: Content) -> _Prompt:
    """The first turn is all up to the first user message: the system prompts, and a greeting if there is one."""
    if system is not None:
        messages = [Message("system", system), *messages]
    size = 0
    first_turn: list[bytes] = []
    in_first_turn = True
    for message in messages:
        content = message.content
        if isinstance(content, str):
            text = content.encode()
            size += len(text)
            if in_first_turn:
                first_turn.append(text)
        elif content is not None:
            size += sum(map(_part_bytes, content))
            if in_first_turn:
                first_turn += map(_part_identity, content)
        if message.role == "user":
            in_first_turn = False
        size += len(message.tool_calls) + len(message.arguments) + len(message.output)
    return size // BYTES_PER_TOKEN, first_turn


def _part_bytes(part: Part) -> int:
    """Size of a part's text; media have none."""
    result = part.content
    size = len(part.text.encode()) + len(part.input)
    if result is not None:
        texts = [result] if isinstance(result, str) else [piece.text for piece in result]
        size += sum(len(text.encode()) for text in texts)
    return size


def _part_identity(part: Part) -> bytes:
    """A part's text, or its media as they stand. Not the whole part: clients move cache marks between turns."""
    media = (part.image_url, part.video_url, part.audio_url, part.input_audio, part.source)
    return part.text.encode() or b"".join(media)
