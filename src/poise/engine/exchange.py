"""One generating request between its HTTP connection and its sequence in the engine."""

import asyncio
from typing import Protocol

from poise.engine.answers import Answer, Usage
from poise.engine.driver import EngineDriver
from poise.engine.errors import ApiError, busy
from poise.engine.text import TOKEN_BYTES
from poise.engine_model.sequence import Sequence


class Outlet(Protocol):
    """The connection that an answer goes to."""

    def begin_stream(self) -> None:
        """Send the head of a stream."""

    def send(self, data: bytes) -> None:
        """Send bytes of a stream, framed already."""

    def send_chunk(self, data: bytes) -> None:
        """Send one HTTP chunk of a stream."""

    def end_stream(self) -> None:
        """Send the end of a stream."""

    def answer(self, status: int, body: bytes) -> None:
        """Send an answer that is not streamed."""


class Exchange:
    """Owns one sequence; sends each token on as it comes, or all at the end. Ends once: answered, refused or left."""

    __slots__ = (
        "_after",
        "_answer",
        "_before",
        "_driver",
        "_outlet",
        "_sent_bytes",
        "_sequence",
        "_stream",
        "_text",
        "timer",
    )

    def __init__(self, answer: Answer, text: bytes, sequence: Sequence, driver: EngineDriver, outlet: Outlet) -> None:
        self._answer = answer
        self._text = text
        self._sequence = sequence
        self._driver = driver
        self._outlet = outlet
        self._stream = answer.wanted.stream
        self._sent_bytes = 0
        size = len(answer.token_before) + TOKEN_BYTES + len(answer.token_after)
        self._before = b"%x\r\n%b" % (size, answer.token_before)
        self._after = answer.token_after + b"\r\n"
        self.timer: asyncio.Handle | None = None
        """Until the sequence is submitted."""
        sequence.owner = self

    def open(self) -> None:
        """A stream's status and head go out at once, before anything is known of the queue."""
        if self._stream:
            self._outlet.begin_stream()
            if self._answer.opening:
                self._outlet.send_chunk(self._answer.opening)

    def submit(self) -> None:
        """Queue the sequence. A refusal is an error answer, or an event in a stream whose head was sent."""
        if self._driver.submit(self._sequence) is not None:
            self.fail(busy())

    def fail(self, error: ApiError) -> None:
        """End with `error`."""
        if self._stream:
            self._outlet.send_chunk(self._answer.error_events(error))
            self._outlet.end_stream()
        else:
            self._outlet.answer(error.status, self._answer.error_body(error))

    def abort(self) -> None:
        """The caller has gone."""
        if self.timer is not None:
            self.timer.cancel()
        self._driver.abort(self._sequence)

    def token(self) -> None:
        """One more token, not the last."""
        if not self._stream:
            return
        sent = self._sent_bytes
        self._sent_bytes = end = sent + TOKEN_BYTES
        if not sent and (first := self._answer.first()):
            self._outlet.send_chunk(first)
        self._outlet.send(self._before + self._text[sent:end] + self._after)

    def last_token(self) -> None:
        """The last token: the end of the answer."""
        sequence = self._sequence
        usage = Usage(sequence.prompt_tokens, sequence.output_tokens, sequence.cached_tokens)
        if not self._stream:
            self._outlet.answer(200, self._answer.plain(self._text, sequence.finish_reason, usage))
            return
        events = self._answer.last(self._text, self._text[self._sent_bytes :], sequence.finish_reason, usage)
        self._outlet.send_chunk(events if self._sent_bytes else self._answer.first() + events)
        self._outlet.end_stream()
