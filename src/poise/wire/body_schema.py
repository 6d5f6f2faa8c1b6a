"""The few fields of request bodies that placement reads, as msgspec structures; all others are skipped."""

from typing import Any

import msgspec
from msgspec import Raw

ABSENT = Raw(b"")
"""Stands for a field that the body does not have."""


class Text(msgspec.Struct, gc=False):
    """A text inside a tool's result."""

    text: str = ""


class Part(msgspec.Struct, gc=False):
    """One part of a message's content, in the chat, responses or messages API."""

    text: str = ""
    content: str | list[Text] | None = None
    """A tool's result."""
    input: Raw = ABSENT
    """A tool call's arguments."""
    image_url: Raw = ABSENT
    video_url: Raw = ABSENT
    audio_url: Raw = ABSENT
    input_audio: Raw = ABSENT
    source: Raw = ABSENT


Content = str | list[Part] | None


class Message(msgspec.Struct, gc=False):
    """One chat message, or one item of a responses `input`."""

    role: str = ""
    content: Content = None
    tool_calls: Raw = ABSENT
    arguments: Raw = ABSENT
    output: Raw = ABSENT


class Body(msgspec.Struct, gc=False):
    """A request's body in any of the APIs."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    messages: list[Message] | None = None
    system: Content = None
    instructions: str | None = None
    tools: Raw = ABSENT
    prompt: Raw = ABSENT
    input: Raw = ABSENT
    query: Raw = ABSENT
    documents: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    session_id: Raw = ABSENT
    user: Raw = ABSENT
    previous_response_id: str | None = None


FIELD_DECODERS: dict[str, Any] = {f.name: msgspec.json.Decoder(f.type) for f in msgspec.structs.fields(Body)}
"""Reads one field by itself, where another one is of the wrong type."""
RawBody = msgspec.defstruct("RawBody", [(name, Raw, ABSENT) for name in FIELD_DECODERS], gc=False)

decode_body = msgspec.json.Decoder(Body).decode
decode_raw_body = msgspec.json.Decoder(RawBody).decode
decode_text = msgspec.json.Decoder(str).decode
decode_messages = msgspec.json.Decoder(list[Message]).decode
