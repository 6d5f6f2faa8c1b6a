"""The few fields of answers and events that the gateway reads, as msgspec structures; all others are skipped."""

from typing import Any

import msgspec


class ErrorBody(msgspec.Struct):
    """The `error` object of an error event."""

    type: str | None = None
    code: msgspec.Raw = msgspec.Raw(b"")


class Event(msgspec.Struct):
    """Any event: is it an error, and what does it call itself?"""

    error: msgspec.Raw = msgspec.Raw(b"")
    type: str | None = None


class Delta(msgspec.Struct):
    """One choice of a chat stream's event: what it adds, by name, and why it ended."""

    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class ChatEvent(msgspec.Struct):
    """An event of the chat API."""

    choices: list[Delta] = []


class PromptDetails(msgspec.Struct):
    """How much of the prompt was not computed again."""

    cached_tokens: int | None = None


class TokenUsage(msgspec.Struct):
    """Token counts under the names of the chat API (first three) and of the responses and messages APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: msgspec.Raw = msgspec.Raw(b"")
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: msgspec.Raw = msgspec.Raw(b"")
    cache_read_input_tokens: int | None = None


class Choice(msgspec.Struct):
    """One choice of a plain answer."""

    finish_reason: str | None = None


class PlainBody(msgspec.Struct):
    """Why a plain answer of the chat, completions or messages API ended."""

    choices: list[Choice] = []
    stop_reason: str | None = None


class Identified(msgspec.Struct):
    """A response of the responses API."""

    id: str


class CreatedEvent(msgspec.Struct):
    """The event that says that a response has been created."""

    response: Identified


class InnerResponse(msgspec.Struct):
    """The response inside an event of the responses API."""

    usage: TokenUsage | None = None


class UsageEvent(msgspec.Struct):
    """An event, or a plain answer, that may carry usage."""

    usage: TokenUsage | None = None
    response: InnerResponse | None = None


decode_event = msgspec.json.Decoder(Event).decode
decode_chat_event = msgspec.json.Decoder(ChatEvent).decode
decode_error = msgspec.json.Decoder(ErrorBody).decode
decode_plain = msgspec.json.Decoder(PlainBody).decode
decode_identified = msgspec.json.Decoder(Identified).decode
decode_created = msgspec.json.Decoder(CreatedEvent).decode
decode_usage = msgspec.json.Decoder(UsageEvent).decode
decode_details = msgspec.json.Decoder(PromptDetails).decode
