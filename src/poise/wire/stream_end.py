"""Whether an event stream that ended was finished. Pure: blocks of complete events in, a verdict out.

vLLM ends a stream that it broke off with status 200 and a clean `[DONE]`; what tells is the finish reason.
"""

import re
from enum import Enum, auto

from poise.wire.answers import Usage, stream_usage


class StreamEnd(Enum):
    """How a finished event stream of a route can be told from one that was cut."""

    DONE = auto()
    """`data: [DONE]`, after an event with a finish reason if the events have any."""
    MESSAGE_STOP = auto()
    """An event of type `message_stop`."""
    RESPONSE_COMPLETED = auto()
    """An event of type `response.completed`, `response.incomplete` or `response.failed`."""
    ANY = auto()
    """The end of the body is all there is to see."""


class Fault(Enum):
    """What is wrong with a stream's end."""

    ABORTED = auto()
    """The engine says that it broke the answer off."""
    UNFINISHED = auto()
    """The answer ended without having been finished."""


MARKERS = {
    StreamEnd.DONE: (b"[DONE]", b'finish_reason":"', b'finish_reason": "', b'"usage":{', b'"error"'),
    StreamEnd.MESSAGE_STOP: (b"message_stop", b'stop_reason":"', b'stop_reason": "', b'"error"'),
    StreamEnd.RESPONSE_COMPLETED: (b"response.completed", b"response.incomplete", b"response.failed", b'"error"'),
    StreamEnd.ANY: (),
}
"""A read without any of these says nothing about the stream's end; looking for one costs some 100 ns."""

_DONE = re.compile(rb"(?:^|[\r\n])(data: ?\[DONE\])")
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"(?!abort")')
_ABORTED = {
    # In the chat API `stop_reason` is the caller's own stop string, which may be anything.
    StreamEnd.DONE: re.compile(rb'"finish_reason"\s*:\s*"abort"'),
    StreamEnd.MESSAGE_STOP: re.compile(rb'"stop_reason"\s*:\s*"abort"'),
}
_NEVER = re.compile(rb"(?!)")
_RESPONSE_FAILED = re.compile(rb'"type"\s*:\s*"response\.failed"')
_ERROR_EVENT = re.compile(
    rb'(?:^|[\r\n])(?:event: ?error|data: ?\{\s*"error"\s*:\s*\{|data: ?\{\s*"type"\s*:\s*"error")'
)
_ENDED = {
    StreamEnd.DONE: _DONE,
    StreamEnd.MESSAGE_STOP: re.compile(rb'"type"\s*:\s*"message_stop"'),
    StreamEnd.RESPONSE_COMPLETED: re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete|failed)"'),
    StreamEnd.ANY: re.compile(rb""),
}
_TAIL_BYTES = 4096


class StreamEndWatch:
    """What a stream's events have said about its end so far. `errored`: the caller has been told of a failure."""

    __slots__ = ("_before", "_last", "_markers", "_named", "_usage", "aborted", "end", "ended", "errored", "finished")

    def __init__(self, end: StreamEnd) -> None:
        self.end = end
        self.aborted = self.finished = self.errored = self._named = False
        self.ended = end is StreamEnd.ANY
        self._markers = MARKERS[end]
        self._usage: Usage | None = None
        self._before = self._last = b""

    def says_nothing(self, block: bytes) -> bool:
        """Whether `block` can be passed on without another look."""
        # Not `in`: it asks first whether the marker is a number, and making that error costs as much as the search.
        if not self._named:
            self._named = block.rfind(b'"finish_reason"') >= 0
        for marker in self._markers:
            if block.rfind(marker) >= 0:
                return False
        self._before, self._last = self._last, block if len(block) <= _TAIL_BYTES else block[-_TAIL_BYTES:]
        return True

    def note(self, block: bytes) -> None:
        """Take note of what a block of complete events says."""
        if b'"usage"' in block:
            self._usage = stream_usage(block[-_TAIL_BYTES:]) or self._usage
        if self.says_nothing(block):
            return
        self._before, self._last = (self._before + self._last)[-_TAIL_BYTES:], block[-_TAIL_BYTES:]
        self.aborted = self.aborted or _ABORTED.get(self.end, _NEVER).search(block) is not None
        self.finished = self.finished or _FINISHED.search(block) is not None
        self.errored = self.errored or _ERROR_EVENT.search(block) is not None
        self.errored = self.errored or _RESPONSE_FAILED.search(block) is not None
        self.ended = self.ended or _ENDED[self.end].search(block) is not None

    def fault(self) -> Fault | None:
        """What is wrong if the stream ends here, None if it is a whole answer."""
        if self.aborted:
            return Fault.ABORTED
        if self.errored or not self.ended:
            return Fault.UNFINISHED
        # Servers that never name a finish reason end with `[DONE]` alone; one that names it and left it null did not.
        if self.end is not StreamEnd.DONE or self.finished or not self._named:
            return None
        return None if _FINISHED.search(self._before + self._last) else Fault.UNFINISHED

    @property
    def usage(self) -> Usage | None:
        """The last token counts that the stream gave."""
        return stream_usage(self._before + self._last) or self._usage


def done_offset(block: bytes) -> int | None:
    """Where `data: [DONE]` begins as a line of its own, None if it does not occur."""
    match = _DONE.search(block)
    return match.start(1) if match else None
