"""Answers whose streams are made of named events: `/v1/responses` (OpenAI) and `/v1/messages` (Anthropic)."""

from collections.abc import Sequence
from typing import Any

import msgspec

from poise.engine.answers import Answer, Usage
from poise.engine.errors import ApiError
from poise.engine.requests import Wanted

_encode = msgspec.json.Encoder().encode


def named_event(value: dict[str, Any]) -> bytes:
    """One event named after its `type`."""
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), _encode(value))


class ResponsesAnswer(Answer):
    """`/v1/responses`. Two events come with the head, while the request may still be queued."""

    id_prefix = "resp_"

    def __init__(self, wanted: Wanted, model: str, request_id: str, created: int) -> None:
        self.item_id = f"msg_{request_id}"
        super().__init__(wanted, model, request_id, created)
        if wanted.stream:
            started = self._response("in_progress", [], None)
            self.opening = self._numbered(0, "response.created", response=started)
            self.opening += self._numbered(1, "response.in_progress", response=started)

    def first(self) -> bytes:
        item = {"id": self.item_id, "content": [], "role": "assistant", "status": "in_progress", "type": "message"}
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return self._numbered(2, "response.output_item.added", item=item, output_index=0) + self._numbered(
            3, "response.content_part.added", content_index=0, item_id=self.item_id, output_index=0, part=part
        )

    def last(self, text: bytes, token: bytes, finish: str, usage: Usage) -> bytes:
        number = 4 + usage.completion_tokens
        place = {"content_index": 0, "item_id": self.item_id, "output_index": 0}
        item = self._item(text)
        final = self._response(_status(finish), [item], usage)
        return b"".join(
            (
                self.token_before + token + self.token_after,
                self._numbered(number, "response.output_text.done", **place, logprobs=[], text=text.decode()),
                self._numbered(number + 1, "response.content_part.done", **place, part=item["content"][0]),
                self._numbered(number + 2, "response.output_item.done", item=item, output_index=0),
                self._numbered(number + 3, "response.completed", response=final),
            )
        )

    def plain(self, text: bytes, finish: str, usage: Usage) -> bytes:
        return _encode(self._response(_status(finish), [self._item(text)], usage))

    def _token_frame(self) -> tuple[bytes, bytes]:
        # A real server counts `sequence_number` up; here every delta has the same, so that the frame is made once.
        frame = self._numbered(
            4,
            "response.output_text.delta",
            content_index=0,
            delta="\0",
            item_id=self.item_id,
            logprobs=[],
            output_index=0,
        )
        before, after = frame.split(_encode("\0")[1:-1], 1)
        return before, after

    def _item(self, text: bytes) -> dict[str, Any]:
        content: list[dict[str, Any]] = [
            {"annotations": [], "text": text.decode(), "type": "output_text", "logprobs": None}
        ]
        return {
            "id": self.item_id,
            "content": content,
            "role": "assistant",
            "status": "completed",
            "type": "message",
            "phase": None,
        }

    def _response(self, status: str, output: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": incomplete,
            "instructions": None,
            "metadata": None,
            "model": self.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self.wanted.max_tokens,
            "previous_response_id": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "truncation": "disabled",
            "usage": usage and _responses_usage(usage),
            "user": None,
        }

    @staticmethod
    def _numbered(number: int, kind: str, **values: Any) -> bytes:
        return named_event({**values, "sequence_number": number, "type": kind})


class MessagesAnswer(Answer):
    """`/v1/messages`."""

    def first(self) -> bytes:
        usage = {"input_tokens": len(self.wanted.prompt) // 4, "output_tokens": 0}
        message = {**self._message([], None), "stop_sequence": None, "usage": usage}
        block = {"type": "text", "text": ""}
        return named_event({"type": "message_start", "message": message}) + named_event(
            {"type": "content_block_start", "content_block": block, "index": 0}
        )

    def last(self, text: bytes, token: bytes, finish: str, usage: Usage) -> bytes:
        delta = {"stop_reason": _stop_reason(finish), "stop_sequence": None}
        return b"".join(
            (
                self.token_before + token + self.token_after,
                named_event({"type": "content_block_stop", "index": 0}),
                named_event({"type": "message_delta", "delta": delta, "usage": _messages_usage(usage)}),
                named_event({"type": "message_stop"}),
            )
        )

    def plain(self, text: bytes, finish: str, usage: Usage) -> bytes:
        content = [{"type": "text", "text": text.decode()}]
        return _encode({**self._message(content, _stop_reason(finish)), "usage": _messages_usage(usage)})

    def error_events(self, error: ApiError) -> bytes:
        return b"event: error\ndata: %b\n\n" % error.anthropic_body()

    @staticmethod
    def error_body(error: ApiError) -> bytes:
        return error.anthropic_body()

    def _token_frame(self) -> tuple[bytes, bytes]:
        delta = {"type": "text_delta", "text": "\0"}
        frame = named_event({"type": "content_block_delta", "delta": delta, "index": 0})
        before, after = frame.split(_encode("\0")[1:-1], 1)
        return before, after

    def _message(self, content: Sequence[object], stop_reason: str | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            "stop_reason": stop_reason,
        }


def _status(finish: str) -> str:
    return "completed" if finish == "stop" else "incomplete"


def _stop_reason(finish: str) -> str:
    return "end_turn" if finish == "stop" else "max_tokens"


def _responses_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _messages_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }
