"""HTTP/1.1 heads as bytes: what is dropped, what is added, what the gateway answers itself."""

from collections.abc import Collection, Iterable, Sequence
from http import HTTPStatus

import msgspec

from poise.core.errors import Refusal

REASONS: dict[int, bytes] = {status.value: status.phrase.encode() for status in HTTPStatus}
"""Reason phrases by status."""

HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
"""Headers that belong to one connection (RFC 9110 7.6.1 and what precedes it in practice)."""

DROPPED_FROM_ANSWERS = HOP_BY_HOP | {b"content-length", b"x-request-id", b"x-poise-replica", b"x-poise-reason"}
"""What the gateway writes itself, or nobody may."""
LOCATIONS = frozenset({b"location", b"content-location"})
_LOOKED_AT = DROPPED_FROM_ANSWERS | LOCATIONS
BODILESS = frozenset({204, 304})
"""Final statuses whose answers have no body, whatever their head says."""

Headers = Sequence[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


def status_line(status: int) -> bytes:
    """The first line of an answer, with the usual reason phrase."""
    return b"HTTP/1.1 %d %b\r\n" % (status, REASONS.get(status, b"Unknown"))


class AnswerHead:
    """A replica's answer head, read once: `lines` are the headers that the caller gets, flat and ready to be joined.

    `authority` is the replica's own host and port, which callers must not learn.
    `length` is the body's length if the replica said it; `framed` says whether its end can be told without the
    connection's, `chunked` whether by chunks; `events` whether it is an event stream whose events can be read;
    `encoded` whether the body is compressed; `foreign_coding` whether it is in a transfer coding other than chunked.
    """

    __slots__ = ("chunked", "encoded", "events", "foreign_coding", "framed", "length", "lines", "status")

    def __init__(self, status: int, headers: Headers, authority: bytes = b"") -> None:
        self.status = status
        self.length: int | None = None
        self.framed = status in BODILESS
        self.chunked = False
        self.events = False
        self.lines: list[bytes] = []
        self.encoded = False
        self.foreign_coding = False
        connection = b""
        for name, value in headers:
            lower = name.lower()
            if lower in _LOOKED_AT:
                if lower == b"content-length":
                    self.length, self.framed = int(value), True
                elif lower == b"transfer-encoding":
                    self.framed = True
                    self.chunked = value.lower() == b"chunked"
                    self.foreign_coding = not self.chunked
                elif lower == b"connection":
                    connection = connection + b"," + value if connection else value
                elif lower in LOCATIONS and (path := path_of(value, authority)):
                    self.lines += (name, b": ", path, b"\r\n")
                continue
            if lower == b"content-type":
                self.events = 200 <= status < 300 and value[:17].lower() == b"text/event-stream"
            elif lower == b"content-encoding":
                self.encoded = value.lower() != b"identity"
            self.lines += (name, b": ", value, b"\r\n")
        self.events = self.events and not self.encoded
        if connection and connection.lower() not in (b"close", b"keep-alive"):
            self.drop(*connection_tokens(connection))

    @property
    def bodiless(self) -> bool:
        """Whether the answer can have no body."""
        return self.status in BODILESS

    def drop(self, *names: bytes) -> None:
        """Leave out the headers with these lower-case names."""
        self.lines = without(self.lines, names)


def path_of(location: bytes, authority: bytes) -> bytes:
    """A `Location` as a caller of the gateway can follow it: without the replica's `authority`, empty if it is foreign.

    What names no host is left as it is.
    """
    scheme, mark, rest = location.partition(b"//")
    if not mark or scheme.lower() not in (b"", b"http:", b"https:"):
        return b"" if b"://" in location.partition(b"?")[0] else location
    if not rest.lower().startswith(authority.lower()):
        return b""
    path = rest[len(authority) :]
    if not path:
        return b"/"
    return path if path.startswith(b"/") and not path.startswith(b"//") else b""


def without(lines: list[bytes], names: Collection[bytes]) -> list[bytes]:
    """Flat header lines (name, `: `, value, line end) less those with the lower-case `names`."""
    return [part for i in range(0, len(lines), 4) if lines[i].lower() not in names for part in lines[i : i + 4]]


def connection_tokens(value: bytes) -> set[bytes]:
    """Names in a `Connection` header's value, lower case: each is a header for this connection alone."""
    return {token.strip().lower() for token in value.split(b",")}


def own_head(status: int, body_bytes: int, headers: Iterable[tuple[bytes, bytes]], *, close: bool) -> bytes:
    """The head of a JSON answer of the gateway's own; `close` announces the end of the connection."""
    parts = [status_line(status)]
    parts += [b"%b: %b\r\n" % header for header in headers]
    if close:
        parts.append(b"connection: close\r\n")
    if status not in BODILESS:
        parts.append(b"content-type: application/json\r\ncontent-length: %d\r\n" % body_bytes)
    parts.append(b"\r\n")
    return b"".join(parts)


ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(refusal: Refusal) -> bytes:
    """JSON that clients of the chat, responses and messages APIs all read as an error.

    `code` is the gateway's own word for what happened; `fault` says who has to act.
    """
    kind = ERROR_TYPES.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    error = {
        "message": refusal.message, "type": kind, "param": None, "code": refusal.code, "fault": refusal.fault,
    }  # fmt: skip
    return _encode({"type": "error", "error": error})


def refusal_headers(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    """`Retry-After` if the refusal has one."""
    return [] if refusal.retry_after_s is None else [(b"retry-after", b"%d" % refusal.retry_after_s)]
