"""The four generating APIs as a real engine speaks them: their streams and plain answers, good and bad."""

from dataclasses import dataclass
from typing import Any

from support.http_bytes import to_json

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"

BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."


def data(value: Any) -> bytes:
    """A server-sent event without a type."""
    return b"data: %b\n\n" % to_json(value)


def typed(kind: str, value: dict[str, Any]) -> bytes:
    """A server-sent event with its type on a line of its own, and in the JSON too."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json({"type": kind, **value}))


@dataclass(frozen=True)
class Api:
    """One API. `events` is a whole stream; its last event is the one that says that the answer is whole.

    `silent` says nothing of output (may be empty); `output` is one output event; `aborted` ends a stream as an engine
    does that breaks an answer off; `plain_aborted` is the same for a plain answer (None where there is no such form).
    """

    name: str
    route: str
    path: str
    body: dict[str, Any]
    silent: tuple[bytes, ...]
    output: bytes
    events: tuple[bytes, ...]
    aborted: tuple[bytes, ...]
    plain: dict[str, Any]
    plain_aborted: dict[str, Any] | None
    typed_errors: bool = False

    @property
    def ending(self) -> bytes:
        """The event without which the stream was cut."""
        return self.events[-1]

    @property
    def begun(self) -> bytes:
        """The stream without that event."""
        return b"".join(self.events[:-1])

    @property
    def whole(self) -> bytes:
        """The stream's bytes."""
        return b"".join(self.events)

    def request_body(self, *, stream: bool, **more: Any) -> bytes:
        """A request's JSON."""
        return to_json({**self.body, **({"stream": True} if stream else {}), **more})

    def error_event(self, status: int, message: str = BUSY) -> bytes:
        """The error as an engine puts it into a stream."""
        kind = {400: "BadRequestError", 503: "Service Unavailable"}.get(status, "InternalServerError")
        if self.typed_errors:
            kind = {400: "invalid_request_error", 503: "overloaded_error"}.get(status, "api_error")
            return typed("error", {"error": {"type": kind, "message": message}})
        return data({"error": {"message": message, "type": kind, "param": None, "code": status}})


def chat_event(delta: dict[str, Any] | None, finish_reason: str | None = None, **more: Any) -> bytes:
    """One chunk of a chat stream; no choices at all if `delta` is None."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]
    return data(
        {
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1796071807, "model": "m",
            "choices": choices, **more,
        }
    )  # fmt: skip


def _text_event(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    return data({"id": "cmpl-1", "object": "text_completion", "created": 1796071810, "model": "m", "choices": [choice]})


USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

_ROLE = chat_event({"role": "assistant", "content": ""})
_CHAT_OUTPUT = chat_event({"content": " otherwise 中文"})


def _chat_answer(finish_reason: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": " otherwise", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1796071807, "model": "m", "choices": [choice],
        "usage": USAGE,
    }  # fmt: skip


CHAT = Api(
    name="chat",
    route="chat",
    path="/v1/chat/completions",
    body={"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 64},
    silent=(_ROLE,),
    output=_CHAT_OUTPUT,
    events=(
        _ROLE, _CHAT_OUTPUT, chat_event({"content": " 🙂 and more"}), chat_event({"content": ""}, "length"), DONE,
    ),
    aborted=(chat_event({"content": "/."}, "abort"), DONE),
    plain=_chat_answer("length"),
    plain_aborted=_chat_answer("abort"),
)  # fmt: skip


def _completion(finish_reason: str) -> dict[str, Any]:
    choice = {"index": 0, "text": "head'],", "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": "cmpl-1", "object": "text_completion", "created": 1796071810, "model": "m", "choices": [choice],
        "usage": USAGE,
    }  # fmt: skip


COMPLETIONS = Api(
    name="completions",
    route="completions",
    path="/v1/completions",
    body={"model": "m", "prompt": "Hello", "max_tokens": 64},
    silent=(),
    output=_text_event("names"),
    events=(_text_event("names"), _text_event("ignore"), _text_event(" ", "length"), DONE),
    aborted=(_text_event("if", "abort"), DONE),
    plain=_completion("length"),
    plain_aborted=_completion("abort"),
)


def _response(status: str, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "created_at": 1796071810, "model": "m", "object": "response", "status": status, **more}


_RESPONSE_BEGIN = (
    typed("response.created", {"response": _response("in_progress", usage=None), "sequence_number": 0}),
    typed("response.in_progress", {"response": _response("in_progress", usage=None), "sequence_number": 1}),
)
_RESPONSE_DELTA = typed("response.output_text.delta", {"delta": " SHA", "item_id": "msg_1", "sequence_number": 4})
_RESPONSE_USAGE = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}

RESPONSES = Api(
    name="responses",
    route="responses",
    path="/v1/responses",
    body={"model": "m", "input": "Hi", "max_output_tokens": 64},
    silent=_RESPONSE_BEGIN,
    output=_RESPONSE_DELTA,
    events=(
        *_RESPONSE_BEGIN,
        typed("response.output_item.added", {"item": {"id": "msg_1", "content": []}, "sequence_number": 2}),
        _RESPONSE_DELTA,
        typed("response.output_text.done", {"text": " SHA", "item_id": "msg_1", "sequence_number": 5}),
        typed("response.completed", {"response": _response("completed", usage=_RESPONSE_USAGE), "sequence_number": 6}),
    ),
    aborted=(typed("response.failed", {"response": _response("failed", error={"code": "server_error"})}),),
    plain=_response("completed", output=[], usage=_RESPONSE_USAGE),
    plain_aborted=None,
)


def _message_delta(stop_reason: str) -> bytes:
    usage = {"input_tokens": 11, "output_tokens": 7}
    return typed("message_delta", {"delta": {"stop_reason": stop_reason, "stop_sequence": None}, "usage": usage})


def _message(stop_reason: str | None, **more: Any) -> dict[str, Any]:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m",
        "stop_reason": stop_reason, "usage": {"input_tokens": 11, "output_tokens": 7}, **more,
    }  # fmt: skip


_MESSAGE_DELTA = typed("content_block_delta", {"delta": {"type": "text_delta", "text": "otal"}, "index": 0})
_MESSAGE_STOP = typed("message_stop", {})

MESSAGES = Api(
    name="messages",
    route="messages",
    path="/v1/messages",
    body={"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64},
    silent=(typed("ping", {}),),
    output=_MESSAGE_DELTA,
    events=(
        typed("message_start", {"message": _message(None)}),
        typed("content_block_start", {"content_block": {"type": "text", "text": ""}, "index": 0}),
        _MESSAGE_DELTA,
        typed("content_block_stop", {"index": 0}),
        _message_delta("max_tokens"),
        _MESSAGE_STOP,
    ),
    aborted=(_message_delta("abort"), _MESSAGE_STOP),
    plain=_message("max_tokens"),
    plain_aborted=_message("abort"),
    typed_errors=True,
)

APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def events_of(body: bytes) -> list[bytes]:
    """The events and comments of a stream, without the empty lines that end them; bytes after the last come last."""
    return [event for event in bytes(body).split(b"\n\n") if event]


def without_comments(body: bytes) -> bytes:
    """The stream without its comments."""
    return b"".join(event + b"\n\n" for event in events_of(body) if not event.startswith(b":"))
