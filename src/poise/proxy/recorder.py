"""Takes an answer down instead of writing it to a caller, so that it can be given more than once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from poise.admission.idempotency import KeptAnswer
from poise.proxy.response import ResponseWriter
from poise.wire.http import AnswerHead

if TYPE_CHECKING:
    from poise.proxy.request import IncomingRequest


class AnswerRecorder(ResponseWriter):
    """A writer without a connection. What has been written so far is `answer`."""

    __slots__ = ("_lines", "_parts", "_status")

    def __init__(self, request: "IncomingRequest") -> None:
        self._status = 0
        self._lines: list[bytes] = []
        self._parts: list[bytes] = []
        self.prepare(request)

    @property
    def kept(self) -> KeptAnswer:
        """The answer as it was written."""
        return KeptAnswer(self._status, tuple(self._lines), b"".join(self._parts), self.replica, self.reason)

    def stream_head(self, status: int, lines: list[bytes]) -> None:
        """See `ResponseWriter.stream_head`."""
        if not self.begun:
            self._begin(status, lines, b"")

    def answer(self, head: AnswerHead, body: bytes, *, length: int | None) -> None:
        """See `ResponseWriter.answer`."""
        self._begin(head.status, head.lines, body)

    def body(self, data: bytes) -> None:
        """See `ResponseWriter.body`."""
        self._parts.append(data)

    def end(self) -> None:
        """See `ResponseWriter.end`."""

    def whole(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See `ResponseWriter.whole`. Takes the place of what was written before."""
        lines = [b"content-type", b": ", b"application/json", b"\r\n"]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        self._begin(status, lines, body)

    def _begin(self, status: int, lines: list[bytes], body: bytes) -> None:
        self.begun = True
        self._status, self._lines, self._parts = status, lines, [body]
