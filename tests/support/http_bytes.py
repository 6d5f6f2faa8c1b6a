"""Requests and answers as bytes, built the plain way."""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

LAST_CHUNK = b"0\r\n\r\n"

HeaderList = Sequence[tuple[str, str]]


def to_json(value: Any) -> bytes:
    """Compact JSON with the characters themselves, not their escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def chunk(data: bytes) -> bytes:
    """`data` as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked(pieces: Iterable[bytes]) -> bytes:
    """The pieces, each as a chunk, and the last chunk."""
    return b"".join(chunk(piece) for piece in pieces if piece) + LAST_CHUNK


def head(first_line: str, headers: HeaderList) -> bytes:
    """A head, the empty line included."""
    lines = [first_line, *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def request(
    target: str = "/v1/chat/completions", body: bytes | Sequence[bytes] | None = None, *, method: str = "POST",
    headers: HeaderList = (),
) -> bytes:  # fmt: skip
    """A request. A body of bytes is sent with its length, a sequence of bytes as chunks, None not at all."""
    lines: list[tuple[str, str]] = [("Host", "poise.test"), *headers]
    if body is None:
        return head(f"{method} {target} HTTP/1.1", lines)
    if not any(name.lower() == "content-type" for name, _ in headers):
        lines.append(("Content-Type", "application/json"))
    if isinstance(body, bytes):
        return head(f"{method} {target} HTTP/1.1", [*lines, ("Content-Length", str(len(body)))]) + body
    return head(f"{method} {target} HTTP/1.1", [*lines, ("Transfer-Encoding", "chunked")]) + chunked(body)


def answer(
    status: int = 200, body: bytes | Sequence[bytes] = b"{}", *, headers: HeaderList = (),
    content_type: str = "application/json", until_close: bool = False,
) -> bytes:  # fmt: skip
    """An answer: bytes with their length, a sequence of bytes as chunks, or bytes that end with the connection."""
    lines: list[tuple[str, str]] = [("date", "Mon, 30 Nov 2026 20:50:07 GMT"), ("server", "uvicorn"), *headers]
    lines.append(("content-type", content_type))
    if not isinstance(body, bytes):
        return head(f"HTTP/1.1 {status} Some Reason", [*lines, ("transfer-encoding", "chunked")]) + chunked(body)
    lines.append(("connection", "close") if until_close else ("content-length", str(len(body))))
    return head(f"HTTP/1.1 {status} Some Reason", lines) + body


STREAM_HEAD = head(
    "HTTP/1.1 200 OK",
    [
        ("date", "Mon, 30 Nov 2026 20:50:07 GMT"), ("server", "uvicorn"),
        ("content-type", "text/event-stream; charset=utf-8"), ("vary", "Origin"), ("transfer-encoding", "chunked"),
    ],
)  # fmt: skip
"""The head that a real engine sends at once, long before the first event."""


def cuts(data: bytes, *positions: int) -> list[bytes]:
    """`data` cut at the positions; nothing is lost, empty parts are left out."""
    edges = [0, *sorted(positions), len(data)]
    return [part for start, end in pairwise(edges) if (part := data[start:end])]


def single_bytes(data: bytes) -> list[bytes]:
    """`data` cut everywhere."""
    return [data[index : index + 1] for index in range(len(data))]
