"""HTTP/1.1 heads as bytes: what is dropped, what is added, what the gateway answers itself."""

from collections.abc import Iterable, Sequence
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

Headers = Sequence[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


def status_line(status: int) -> bytes:
    """The first line of an answer, with the usual reason phrase."""
    return b"HTTP/1.1 %d %b\r\n" % (status, REASONS.get(status, b"Unknown"))


def connection_tokens(headers: Headers) -> frozenset[bytes]:
    """Names in the `Connection` headers, lower case: each is a header for this connection alone."""
    tokens: set[bytes] = set()
    for name, value in headers:
        if name.lower() == b"connection":
            tokens.update(token.strip().lower() for token in value.split(b","))
    return frozenset(tokens)


def answer(status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = (), *, close: bool = False) -> bytes:
    """A whole JSON answer of the gateway's own; `close` announces the end of the connection."""
    parts = [status_line(status)]
    parts += [b"%b: %b\r\n" % header for header in headers]
    if close:
        parts.append(b"connection: close\r\n")
    parts.append(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
    parts.append(body)
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


def error_event(refusal: Refusal, *, typed: bool) -> bytes:
    """The refusal as an event inside a stream; `typed` adds the event type that the messages API goes by."""
    prefix = b"event: error\n" if typed else b""
    return b"%bdata: %b\n\n" % (prefix, error_body(refusal))
