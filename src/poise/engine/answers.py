"""The shape of an answer, streamed and not: one class for each API. They make bytes and send nothing."""

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from poise.engine.errors import ApiError
from poise.engine.requests import Wanted

FINGERPRINT = "poise-sim"
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a finished request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


def event(value: object) -> bytes:
    """One server-sent event with `value` as JSON."""
    return b"data: %b\n\n" % _encode(value)


def split_event(value: object, mark: str = "\0") -> tuple[bytes, bytes]:
    """An event cut in two where the text `mark` stands in `value`."""
    before, after = event(value).split(_encode(mark)[1:-1], 1)
    return before, after


class Answer:
    """One answer. A stream is `opening` (with the head), `first`, any number of tokens, `last`.

    A token in between is `token_before`, its text, `token_after`: made once, as only the text changes.
    """

    id_prefix: ClassVar[str] = "chatcmpl-"
    opening: bytes = b""

    def __init__(self, wanted: Wanted, model: str, request_id: str, created: int) -> None:
        self.wanted = wanted
        self.model = model
        self.id = self.id_prefix + request_id
        self.created = created
        self.token_before, self.token_after = self._token_frame() if wanted.stream else (b"", b"")

    def first(self) -> bytes:
        """Events before the first token."""
        return b""

    def last(self, text: bytes, token: bytes, finish: str, usage: Usage) -> bytes:
        """Events from the last token to the end of the stream; `text` is the whole answer, `token` its last token."""
        raise NotImplementedError

    def plain(self, text: bytes, finish: str, usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        raise NotImplementedError

    def error_events(self, error: ApiError) -> bytes:
        """An error inside a stream whose head was sent, and the stream's end."""
        return b"data: %b\n\n%b" % (error.openai_body(), DONE)

    @staticmethod
    def error_body(error: ApiError) -> bytes:
        """The body of an error answer."""
        return error.openai_body()

    def _token_frame(self) -> tuple[bytes, bytes]:
        """What stands before and after the text of a token."""
        raise NotImplementedError


class ChatAnswer(Answer):
    """`/v1/chat/completions`."""

    def _chunk(self, delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
        chunk = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None, **choice}
        return self._object("chat.completion.chunk", [chunk])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _token_frame(self) -> tuple[bytes, bytes]:
        return split_event(self._chunk({"content": "\0"}))

    def first(self) -> bytes:
        return event(self._chunk({"role": "assistant", "content": ""}))

    def last(self, text: bytes, token: bytes, finish: str, usage: Usage) -> bytes:
        end = self._chunk({"content": token.decode()}, finish_reason=finish, stop_reason=None)
        events = event({**end, "system_fingerprint": FINGERPRINT})
        if self.wanted.include_usage:
            events += event({**self._object("chat.completion.chunk", []), "usage": openai_usage(usage)})
        return events + DONE

    def plain(self, text: bytes, finish: str, usage: Usage) -> bytes:
        message = {
            "role": "assistant",
            "content": text.decode(),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": None,
        }
        body = self._object("chat.completion", [choice])
        body |= {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": openai_usage(usage)}
        return _encode(body | {"prompt_logprobs": None, "prompt_token_ids": None, "kv_transfer_params": None})


class CompletionAnswer(Answer):
    """`/v1/completions`."""

    id_prefix = "cmpl-"

    def _object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**head, "choices": choices}

    def _choice(self, text: str, finish: str | None) -> dict[str, Any]:
        return {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }

    def _token_frame(self) -> tuple[bytes, bytes]:
        return split_event(self._object([self._choice("\0", None)]))

    def last(self, text: bytes, token: bytes, finish: str, usage: Usage) -> bytes:
        events = event(self._object([self._choice(token.decode(), finish)]))
        if self.wanted.include_usage:
            events += event({**self._object([]), "usage": openai_usage(usage), "system_fingerprint": FINGERPRINT})
        return events + DONE

    def plain(self, text: bytes, finish: str, usage: Usage) -> bytes:
        body = self._object([self._choice(text.decode(), finish)])
        body |= {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": openai_usage(usage)}
        return _encode(body | {"kv_transfer_params": None})


class EmbeddingAnswer(Answer):
    """`/v1/embeddings`: eight numbers that follow from the text."""

    id_prefix = "embd-"

    def plain(self, text: bytes, finish: str, usage: Usage) -> bytes:
        prompt = self.wanted.prompt
        vector = [round(prompt[index % len(prompt)] / 255, 4) for index in range(8)]
        tokens = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens, "completion_tokens": 0}
        data = [{"index": 0, "object": "embedding", "embedding": vector}]
        return _encode(
            {
                "id": self.id,
                "object": "list",
                "created": self.created,
                "model": self.model,
                "data": data,
                "usage": {**tokens, "prompt_tokens_details": None},
            }
        )


def openai_usage(usage: Usage) -> dict[str, Any]:
    """`usage` as vLLM writes it with `--enable-prompt-tokens-details`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "created_cache_tokens": None},
    }
