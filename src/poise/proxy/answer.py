"""One attempt's answer on its way to the caller: held until it is known to be one, then passed on unaltered.

Two kinds: a plain answer is held whole (up to a bound), an event stream until its first output. Both report to the
exchange what the bytes say; the exchange decides what becomes of the request.
"""

from typing import TYPE_CHECKING

from poise.proxy.retry import ABORTED, LOST, Failure
from poise.wire.answers import RefusedInStream, created_response_id, first_verdict, plain_verdict, response_id
from poise.wire.http import AnswerHead
from poise.wire.sse import EventCutter
from poise.wire.stream_end import Fault, StreamEnd, StreamEndWatch, done_offset

if TYPE_CHECKING:
    from poise.proxy.exchange import Exchange

HELD_PLAIN_BYTES = 1024 * 1024
"""A plain answer longer than this is passed on before its end is known: no finish reason is worth more memory."""
HELD_STREAM_BYTES = 64 * 1024
"""A stream whose first event is longer than this is output: refusals are short."""
DONE_LINES = (b"data: [DONE]", b"data:[DONE]")
FAILURES = {Fault.ABORTED: ABORTED, Fault.UNFINISHED: LOST}


def _may_be_done(rest: bytes) -> bool:
    """Whether an unfinished event may turn out to be `[DONE]`."""
    return any(line.startswith(rest[: len(line)]) for line in DONE_LINES)


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
        if self._held_bytes > self._hold_limit and not self._exchange.out.begun:
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
            exchange.refused(self, self._status, body)
            return
        if self._status == 200 and exchange.request_generates:
            broken_off, exchange.usage = plain_verdict(body)
            if broken_off:
                exchange.attempt_failed(ABORTED)
                return
            if exchange.makes_responses:
                exchange.remember(response_id(body))
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
        exchange.first_output(self._status)
        length = -1 if head.bodiless else len(body) if whole else head.length
        exchange.out.answer(head, body, length=length)


class StreamAnswer:
    """An event stream. `committed` once output has been passed on; from then on each read costs one write."""

    __slots__ = ("_cutter", "_exchange", "_failure", "_head", "_held", "_held_bytes", "_kept", "_watch", "committed")

    def __init__(self, exchange: "Exchange", head: AnswerHead, end: StreamEnd) -> None:
        self._exchange = exchange
        self._head = head
        self._cutter = EventCutter()
        self._watch = StreamEndWatch(end)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._kept = b""
        """The beginning of what may become `[DONE]`, which is passed on only if it is one."""
        self._failure: Failure | None = None
        self.committed = False

    def feed(self, body: bytes) -> None:
        """The next bytes of the stream."""
        exchange = self._exchange
        exchange.active = True
        if not self.committed:
            self._feed_held(body)
        elif (
            body.endswith(b"\n\n")
            and not self._kept
            and self._cutter.between_events
            and self._failure is None
            and self._watch.says_nothing(body)
        ):
            exchange.out.body(body)
        else:
            self._pass_on(self._kept + body, self._cutter.feed(body))

    def pass_chunk(self, chunk: bytes) -> bool:
        """Pass one chunk on with the frame that it came in, if it holds whole events that say nothing of the end."""
        if (
            self.committed
            and chunk.endswith(b"\n\n\r\n")
            and not self._kept
            and self._cutter.between_events
            and self._failure is None
            and self._exchange.out.chunked
            and self._watch.says_nothing(chunk)
        ):
            self._exchange.active = True
            self._exchange.out.framed(chunk)
            return True
        return False

    def _feed_held(self, body: bytes) -> None:
        self._held.append(body)
        self._held_bytes += len(body)
        block = self._cutter.feed(body)
        verdict = first_verdict(block) if block else self._held_bytes > HELD_STREAM_BYTES
        if verdict is False:
            return
        if isinstance(verdict, RefusedInStream):
            self._exchange.refused_in_stream(verdict)
            return
        held = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        if self._exchange.makes_responses:
            self._exchange.remember(created_response_id(held))
        self.committed = True
        head = self._head
        self._exchange.first_output(head.status)
        head.drop(b"cache-control", b"x-accel-buffering")
        self._exchange.out.stream_head(head.status, head.lines)
        self._pass_on(held, block)

    def _pass_on(self, data: bytes, block: bytes) -> None:
        """Pass `data` on, `block` being the complete events that it finishes; keep back what may become `[DONE]`."""
        if self._failure is not None:
            return  # the end that came was not one: nothing behind it is passed on
        watch = self._watch
        if block:
            watch.note(block)
            if watch.end is StreamEnd.DONE and watch.ended and not watch.errored and (fault := watch.fault()):
                self._failure = FAILURES[fault]
                data = data[: done_offset(data)]
        rest = bytes(self._cutter.rest)
        self._kept = rest if rest and watch.end is StreamEnd.DONE and _may_be_done(rest) else b""
        if self._kept:
            data = data[: len(data) - len(rest)]
        if data:
            self._exchange.out.body(data)

    def end(self) -> None:
        """The body is complete: was the answer?"""
        exchange, watch = self._exchange, self._watch
        if not self.committed:
            exchange.attempt_failed(LOST)
            return
        if self._kept:
            exchange.out.body(self._kept)
        if not self._cutter.between_events:
            watch.note(bytes(self._cutter.rest) + b"\n\n")  # a last event whose blank line is missing
        fault = watch.fault()
        exchange.usage = watch.usage
        if fault is None:
            exchange.out.end()
            exchange.complete(self._head.status)
        elif watch.errored:
            exchange.out.end()
            exchange.failed(FAILURES[fault])
        else:
            exchange.attempt_failed(FAILURES[fault])

    def broken_off(self, failure: Failure) -> None:
        """The stream will not be completed: end it for the caller with an error event."""
        out = self._exchange.out
        self._exchange.usage = self._watch.usage
        if not self._cutter.between_events:
            out.body(b"\n\n")
        out.error_event(failure.refusal)
        out.end()
