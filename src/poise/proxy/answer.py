"""One attempt's answer on its way to the caller: held until it is known to be one, then passed on unaltered.

Two kinds: a plain answer is held whole (up to a bound), an event stream until its first output. Both report to the
exchange what the bytes say; the exchange decides what becomes of the request.
"""

from typing import TYPE_CHECKING

from poise.proxy.retry import ABORTED, LOST, Failure
from poise.proxy.routes import StreamEnd
from poise.wire import answers
from poise.wire.http import AnswerHead, error_event, status_line
from poise.wire.sse import EventCutter

if TYPE_CHECKING:
    from poise.core.errors import Refusal
    from poise.proxy.exchange import Exchange

HELD_PLAIN_BYTES = 1024 * 1024
"""A plain answer longer than this is passed on before its end is known: no finish reason is worth more memory."""
HELD_STREAM_BYTES = 64 * 1024
"""A stream whose first event is longer than this is output: refusals are short."""
STREAM_HEADERS = b"cache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
"""So that no proxy in front of the gateway collects or recodes events."""
DONE_LINE = b"data: [DONE]"


class PlainAnswer:
    """An answer with one body. Held whole where it may turn out to be a failure, passed on as it comes otherwise."""

    __slots__ = ("_exchange", "_head", "_held", "_held_bytes", "_hold_limit", "_status", "committed")

    def __init__(self, exchange: "Exchange", head: AnswerHead, *, hold: bool) -> None:
        self._exchange = exchange
        self._head = head
        self._status = head.status
        self._hold_limit = HELD_PLAIN_BYTES if hold else 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.committed = False

    def feed(self, body: bytes) -> None:
        """The next bytes of the body."""
        if self.committed:
            self._exchange.active = True
            self._exchange.out.body(body)
            return
        self._held.append(body)
        self._held_bytes += len(body)
        self._exchange.active = True
        if self._held_bytes > self._hold_limit:
            self._commit(b"".join(self._held), whole=False)

    def end(self) -> None:
        """The body is complete."""
        exchange = self._exchange
        if self.committed:
            exchange.out.end()
            exchange.complete(self._status)
            return
        body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        if self._status >= 500:
            exchange.refused(self, self._status)
            return
        if self._status == 200 and exchange.request_generates:
            broken_off, exchange.usage = answers.plain_verdict(body)
            if broken_off:
                exchange.attempt_failed(ABORTED)
                return
        self._commit(body, whole=True)
        exchange.complete(self._status)

    def pass_on(self) -> None:
        """Give the caller this answer after all: no other replica is tried."""
        self._commit(b"".join(self._held), whole=True)
        self._exchange.complete(self._status)

    def broken_off(self, failure: Failure) -> None:
        """The body will not be completed. What was passed on stands: the caller sees the connection end."""
        self._exchange.client_must_close()

    def _commit(self, body: bytes, *, whole: bool) -> None:
        self.committed = True
        head, exchange = self._head, self._exchange
        exchange.first_output()
        length = -1 if head.bodiless else len(body) if whole else head.length
        exchange.out.answer([status_line(self._status), *head.lines], body, length=length)


class StreamAnswer:
    """An event stream. `committed` once output has been passed on; from then on each read costs one write."""

    __slots__ = (
        "_before", "_cutter", "_end", "_exchange", "_failure", "_head", "_held", "_held_bytes", "_kept", "_last",
        "_status", "committed",
    )  # fmt: skip

    def __init__(self, exchange: "Exchange", head: AnswerHead, end: StreamEnd) -> None:
        self._exchange = exchange
        self._head = head
        self._status = head.status
        self._end = end
        self._cutter = EventCutter()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._kept = b""
        self._before = self._last = b""
        """The last two blocks of complete events: finish reason, usage and `[DONE]` come in one to three reads."""
        self._failure: Failure | None = None
        self.committed = False

    def feed(self, body: bytes) -> None:
        """The next bytes of the stream."""
        exchange = self._exchange
        exchange.active = True
        if not self.committed:
            self._feed_held(body)
        elif body.endswith(b"\n\n") and not self._kept and self._cutter.between_events and b"[DONE]" not in body:
            self._before, self._last = self._last, body
            exchange.out.body(body)
        else:
            self._pass_on_cut(body)

    def _feed_held(self, body: bytes) -> None:
        self._held.append(body)
        self._held_bytes += len(body)
        block = self._cutter.feed(body)
        verdict = answers.first_verdict(block) if block else self._held_bytes > HELD_STREAM_BYTES
        if verdict is False:
            return
        if isinstance(verdict, answers.RefusedInStream):
            self._exchange.refused_in_stream(verdict)
            return
        held = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        self.committed = True
        self._exchange.first_output()
        head = self._head
        head.drop(b"cache-control", b"x-accel-buffering")
        self._exchange.out.stream_head([status_line(self._status), *head.lines, STREAM_HEADERS])
        self._pass_on(held, block)

    def _pass_on_cut(self, body: bytes) -> None:
        self._pass_on(self._kept + body, self._cutter.feed(body))

    def _pass_on(self, data: bytes, block: bytes) -> None:
        """Pass `data` on, `block` being the complete events that it finishes; keep back what may become `[DONE]`."""
        if self._failure is not None:
            return  # the end that came was not one: nothing behind it is passed on
        if block:
            offset = answers.done_offset(data) if self._end is StreamEnd.DONE and b"[DONE]" in block else None
            self._before, self._last = self._before[-4096:] + self._last, block
            if offset is not None and (failure := self._wrong_end()) is not None:
                self._failure = failure
                data = data[:offset]
        rest = bytes(self._cutter.rest)
        self._kept = rest if rest and self._end is StreamEnd.DONE and DONE_LINE.startswith(rest[:12]) else b""
        if self._kept:
            data = data[: len(data) - len(rest)]
        if data:
            self._exchange.out.body(data)

    def end(self) -> None:
        """The body is complete: was the answer?"""
        exchange = self._exchange
        if not self.committed:
            exchange.attempt_failed(LOST)
            return
        if self._kept:
            exchange.out.body(self._kept)
        failure = self._failure or self._missing_end()
        tail = self._before + self._last
        exchange.usage = answers.stream_usage(tail)
        if failure is None:
            exchange.out.end()
            exchange.complete(self._status)
        elif answers.has_error_event(tail):
            exchange.out.end()
            exchange.failed(failure)
        else:
            exchange.attempt_failed(failure)

    def broken_off(self, failure: Failure) -> None:
        """The stream will not be completed: end it for the caller with an error event."""
        self._exchange.usage = answers.stream_usage(self._before + self._last)
        self._exchange.out.body(self.error_event(failure.refusal))
        self._exchange.out.end()

    def error_event(self, refusal: "Refusal") -> bytes:
        """An event that says that the stream has failed, closing an unfinished one first."""
        separator = b"" if self._cutter.between_events else b"\n\n"
        return separator + error_event(refusal, typed=self._end is not StreamEnd.DONE)

    def _wrong_end(self) -> Failure | None:
        """Why a `[DONE]` that has come is not one, None if it is."""
        tail = self._before + self._last
        if answers.aborted(tail):
            return ABORTED
        if answers.finished(tail) or answers.has_error_event(tail):
            return None
        return LOST

    def _missing_end(self) -> Failure | None:
        tail = self._before + self._last
        if answers.aborted(tail):
            return ABORTED
        if answers.has_error_event(tail):
            return LOST
        if self._end is StreamEnd.DONE:
            ended = b"[DONE]" in self._last
        elif self._end is StreamEnd.MESSAGE_STOP:
            ended = answers.has_message_stop(tail)
        elif self._end is StreamEnd.RESPONSE_COMPLETED:
            ended = answers.has_response_end(tail)
        else:
            ended = True
        return None if ended else LOST
