"""What a replica's answer says about itself: refused, begun, finished, aborted. Bytes in, verdicts out.

vLLM sends a stream's status and head while the request still waits in its queue, so the first event decides, and it may
end an answer that was never finished with status 200 and a clean `[DONE]`, so the last ones are looked at too.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from poise.wire.answer_schema import (
    Event,
    TokenUsage,
    decode_chat_event,
    decode_created,
    decode_details,
    decode_error,
    decode_event,
    decode_identified,
    decode_plain,
    decode_usage,
)
from poise.wire.sse import event_lines

UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What reading hostile JSON raises."""
Usage = tuple[int | None, int | None, int | None]
"""Prompt and output tokens as the replica counted them, and how many of the prompt's it had cached, None where it did
not say."""

NO_OUTPUT_TYPES = frozenset({"response.created", "response.in_progress", "response.queued", "ping"})
"""Event types that a server sends before the model has produced anything."""

STATUS_OF_ERROR_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 503,
}
"""Statuses of the messages API's error types, which come without a number (529 is not a standard status: 503)."""


@dataclass(frozen=True, slots=True)
class RefusedInStream:
    """An error event that came before any output: the status it stands for, and its JSON as the body to pass on."""

    status: int
    body: bytes


def first_verdict(block: bytes) -> RefusedInStream | bool:
    """What a block of complete events says while nothing has been passed on.

    True: output has begun. False: nothing yet (comments, pings, bookkeeping, a chat's announcement of who speaks, which
    vLLM also sends for a request that it drops from its queue). Otherwise the refusal.
    """
    for kind, data in event_lines(block):
        if not data or data == b"[DONE]":
            continue  # an end without anything before it is no answer
        try:
            event = decode_event(data)
            silent = event.type in NO_OUTPUT_TYPES or _only_names_the_role(data)
        except UNREADABLE:
            return True
        if kind == b"error" or event.type == "error" or _is_something(event.error):
            return RefusedInStream(_error_status(event), data)
        if not silent:
            return True
    return False


def _only_names_the_role(data: bytes) -> bool:
    """Whether an event of the chat API adds nothing but a role to any choice, and ends none."""
    if b'"role"' not in data:
        return False
    choices = decode_chat_event(data).choices
    return bool(choices) and all([choice.finish_reason is None and _adds_nothing(choice.delta) for choice in choices])


def _adds_nothing(delta: dict[str, Any] | None) -> bool:
    return not delta or not any([value for name, value in delta.items() if name != "role"])


def _is_something(raw: msgspec.Raw) -> bool:
    text = bytes(raw)
    return text[:1] in (b"{", b'"') and text not in (b"{}", b'""')


def _error_status(event: Event) -> int:
    try:
        error = decode_error(event.error)
    except UNREADABLE:
        return 500
    code = bytes(error.code).strip(b'"')
    if len(code) == 3 and code.isdigit() and 400 <= int(code) <= 599:
        return int(code)
    return STATUS_OF_ERROR_TYPE.get(error.type or "", 500)


def stream_usage(tail: bytes) -> Usage | None:
    """The last `usage` object in a block of complete events, None if there is none."""
    for _, data in reversed(event_lines(tail)):
        if b'"usage"' in data:
            try:
                event = decode_usage(data)
            except UNREADABLE:
                continue
            found = event.usage or (event.response.usage if event.response else None)
            if found is not None:
                return _counts(found)
    return None


def plain_verdict(body: bytes) -> tuple[bool, Usage | None]:
    """(whether the engine broke the answer off, its usage) of a whole plain answer; what cannot be read is fine."""
    try:
        usage = decode_usage(body).usage
        counts = None if usage is None else _counts(usage)
        return b'"abort"' in body and _broken_off(body), counts
    except UNREADABLE:
        return False, None


def response_id(body: bytes) -> str | None:
    """The id of a plain answer of the responses API."""
    try:
        return decode_identified(body).id
    except UNREADABLE:
        return None


def created_response_id(block: bytes) -> str | None:
    """The id of the response that a block of complete events begins with."""
    for _, data in event_lines(block):
        if b"response.created" in data:
            try:
                return decode_created(data).response.id
            except UNREADABLE:
                return None
    return None


def _broken_off(body: bytes) -> bool:
    answer = decode_plain(body)
    return answer.stop_reason == "abort" or any(choice.finish_reason == "abort" for choice in answer.choices)


def _counts(usage: TokenUsage) -> Usage:
    prompt, output = usage.prompt_tokens, usage.completion_tokens
    details = usage.prompt_tokens_details or usage.input_tokens_details
    return (
        usage.input_tokens if prompt is None else prompt,
        usage.output_tokens if output is None else output,
        _cached(details) if details else usage.cache_read_input_tokens,
    )


def _cached(details: msgspec.Raw) -> int | None:
    try:
        return decode_details(details).cached_tokens
    except UNREADABLE:
        return None
