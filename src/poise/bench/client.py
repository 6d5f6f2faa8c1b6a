"""One streamed chat request, timed as its caller sees it. Knows nothing of what answers."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httptools
import msgspec

from poise.core.clock import monotonic_s
from poise.wire.sse import EventCutter, event_lines

READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """What came back. Times in seconds from before the connection was made; token counts from usage, None if not said.

    `error` is None only for a status of 200 and a stream that ended with `[DONE]`.
    """

    status: int | None
    text: str
    headers: Mapping[str, str]
    first_output_s: float | None
    end_to_end_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    error: str | None


async def stream_chat(
    host: str, port: int, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None, timeout_s: float = 600.0
) -> TimedAnswer:
    """Ask for a streamed chat completion on a connection of its own. Failures are in the answer, never raised."""
    started_s = monotonic_s()
    reader = _AnswerReader()
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(host, port, _request(host, port, body, headers or {}), reader)
    except TimeoutError:
        reader.error = f"no answer within {timeout_s:g} s"
    except (OSError, httptools.HttpParserError) as error:
        reader.error = f"connection: {error}"
    return reader.answer(started_s)


def _request(host: str, port: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    content = msgspec.json.encode(wanted)
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"host: {host}:{port}",
        "content-type: application/json",
        f"content-length: {len(content)}",
        "connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


async def _exchange(host: str, port: int, request: bytes, answer: "_AnswerReader") -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        while not answer.complete and (data := await reader.read(READ_BYTES)):
            answer.feed(data)
    finally:
        writer.close()


class _AnswerReader:
    """Parses the head, then the events; every method named `on_...` is called by the parser."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._events = EventCutter()
        self._plain = b""
        self._parts: list[str] = []
        self._first_output_at_s: float | None = None
        self._usage: Mapping[str, Any] = {}
        self._done = False

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        if "text/event-stream" not in self._headers.get("content-type", ""):
            self._plain += data
            return
        for _, line in event_lines(self._events.feed(data)):
            if line == b"[DONE]":
                self._done = True
            else:
                self._event(msgspec.json.decode(line))

    def on_message_complete(self) -> None:
        self.complete = True

    def _event(self, event: Any) -> None:
        if "error" in event:
            self.error = self.error or str(event["error"].get("message"))
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices", ()):
            if text := choice["delta"].get("content"):
                self._first_output_at_s = self._first_output_at_s or monotonic_s()
                self._parts.append(text)

    def answer(self, started_s: float) -> TimedAnswer:
        status: int | None = self._parser.get_status_code() or None
        error = self.error
        if error is None and status is None:
            error = "connection: closed without an answer"
        elif error is None and status != 200:
            error = f"status {status}: {self._plain[:200].decode('utf-8', 'replace')}"
        elif error is None and not self._done:
            error = "the stream ended without [DONE]"
        details = self._usage.get("prompt_tokens_details") or {}
        return TimedAnswer(
            status=status,
            text="".join(self._parts),
            headers=self._headers,
            first_output_s=None if self._first_output_at_s is None else self._first_output_at_s - started_s,
            end_to_end_s=monotonic_s() - started_s,
            prompt_tokens=self._usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            output_tokens=self._usage.get("completion_tokens"),
            error=error,
        )
