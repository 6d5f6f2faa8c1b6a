"""Where a request's body names its model, and the body with another name there: every other byte stays as it is."""

import re
from collections.abc import Iterator
from itertools import islice

import msgspec

MAX_PLACES = 1000
"""A body with more objects that could be the one naming its model is left alone."""
PLAIN, ESCAPED = b'"model"', b"\\u006"
"""A key is spelled in one of two ways: as it is, or with an escape that all of its letters begin alike. Looked for as
bytes, since a pattern takes a second for each 20 MB of body."""
ESCAPE_REACH_BYTES = 24
"""How far behind the quote the last letter of an escaped key begins at most."""

# A quote without a backslash before it begins or ends a string, so in valid JSON this can only be a key and its text.
_NAMED = re.compile(
    rb'(?<!\\)"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"[ \t\r\n]*:[ \t\r\n]*'
    rb'("[^"\\]*+(?:\\.[^"\\]*+){0,2000}+")'
)
_PART_NAME = re.compile(rb'^content-disposition:[^\r\n]*;[ \t]*name=(?:"model"|model)[ \t]*(?:;|\r|$)', re.I | re.M)
_BOUNDARY = re.compile(rb'^multipart/form-data;.*?\bboundary=(?:"([^"]{1,70})"|([^";,\s]{1,70}))', re.I | re.S)
MAX_PARTS = 100
MAX_PART_HEAD_BYTES = 4096
MAX_FALSE_DELIMITERS = 1000
"""Lines in one part that only begin like a delimiter."""

Span = tuple[int, int]
"""First byte and the one behind the last."""


class _Named(msgspec.Struct, gc=False):
    model: str


_decode = msgspec.json.Decoder(_Named).decode
_encode = msgspec.json.Encoder().encode


def replace_in_json(body: bytes, model: str) -> bytes | None:
    """JSON `body` with the text of its top-level `model` replaced. None if there is no such text to be found.

    Where the key is given twice the last one counts, as for the engines.
    """
    span = find_in_json(body)
    return None if span is None else body[: span[0]] + _encode(model) + body[span[1] :]


def find_in_json(body: bytes) -> Span | None:
    """Where the text of the top-level `model` is in JSON `body`, quotes included."""
    plain = list(islice(_occurrences(body, PLAIN), MAX_PLACES + 1))
    escaped = list(islice(_occurrences(body, ESCAPED), MAX_PLACES + 1))
    if len(plain) + len(escaped) > MAX_PLACES:
        return None
    quotes = {*plain, *(body.rfind(b'"', max(at - ESCAPE_REACH_BYTES, 0), at) for at in escaped)} - {-1}
    spans = [match.span(1) for quote in sorted(quotes) if (match := _NAMED.match(body, quote))]
    try:
        # Which of them is at the top is the decoder's to say: each is given its own number to be told by.
        return spans[int(_decode(_numbered(body, spans)).model)]
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _occurrences(body: bytes, word: bytes) -> Iterator[int]:
    at = body.find(word)
    while at >= 0:
        yield at
        at = body.find(word, at + 1)


def _numbered(body: bytes, spans: list[Span]) -> bytes:
    parts: list[bytes] = []
    done = 0
    for number, (start, end) in enumerate(spans):
        parts += (body[done:start], b'"%d"' % number)
        done = end
    return b"".join([*parts, body[done:]])


def replace_in_form(body: bytes, content_type: bytes, model: str) -> bytes | None:
    """A multipart form with the value of its field `model` replaced, None if it has no such field."""
    span = find_in_form(body, content_type)
    return None if span is None else body[: span[0]] + model.encode() + body[span[1] :]


def find_in_form(body: bytes, content_type: bytes) -> Span | None:
    """Where the value of the field `model` is in a multipart form, None if it has none."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        return None
    delimiter = b"--" + (found[1] or found[2])
    start = 0 if body.startswith(delimiter) else _next_delimiter(body, b"\r\n" + delimiter, 0) + 2
    for _ in range(MAX_PARTS):
        head_end = body.find(b"\r\n\r\n", start, start + MAX_PART_HEAD_BYTES)
        end = _next_delimiter(body, b"\r\n" + delimiter, start)
        if head_end < 0 or end < head_end:
            return None
        if _PART_NAME.search(body, start, head_end):
            return head_end + 4, end
        start = end + 2
    return None


def _next_delimiter(body: bytes, delimiter: bytes, start: int) -> int:
    """Where the next line begins that is `delimiter` and no longer text that begins alike, -1 if none is found."""
    for _ in range(MAX_FALSE_DELIMITERS):
        start = body.find(delimiter, start)
        end = start + len(delimiter)
        if start < 0 or body[end : end + 2] in (b"\r\n", b"--"):
            return start
        start = end
    return -1
