"""Takes an answer down instead of writing it to a caller, so that it can be given more than once."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from poise.admission.idempotency import KeptAnswer
from poise.proxy.response import ResponseWriter
from poise.wire.http import AnswerHead

if TYPE_CHECKING:
    from poise.proxy.request import IncomingRequest


class AnswerRecorder(ResponseWriter):
    """A writer without a connection. What has been written so far is `kept`, of which `held_bytes` are the body's.

    `account` is told of every change of `held_bytes`.
    """

    __slots__ = ("_account", "_lines", "_parts", "_status", "held_bytes")

    def __init__(self, request: "IncomingRequest", account: Callable[[int], None]) -> None:
        self._account = account
        self._status = self.held_bytes = 0
        self._lines: list[bytes] = []
        self._parts: list[bytes] = []
        self.prepare(request)

    @property
    def kept(self) -> KeptAnswer:
        """The answer as it was written."""
        body = b"".join(self._parts)
        self._parts = [body]
        return KeptAnswer(self._status, tuple(self._lines), body, self.replica, self.reason)

    def release(self) -> None:
        """What was taken down is others' to hold from now on."""
        self._hold(-self.held_bytes)

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
        self._hold(len(data))

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
        self._hold(len(body) - self.held_bytes)

    def _hold(self, change_bytes: int) -> None:
        self.held_bytes += change_bytes
        self._account(change_bytes)
