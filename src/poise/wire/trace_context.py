"""W3C trace context: which trace a request belongs to, read from its headers and written for the next in the chain."""

import re
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
MAX_STATE_BYTES = 512
"""A longer list of vendors' values is dropped, as it may be."""


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The caller's place in its trace: ids in lower-case hex, whether it is recorded, and vendors' values."""

    trace_id: bytes
    span_id: bytes
    sampled: bool
    state: bytes = b""


def read_trace_parent(headers: list[bytes]) -> TraceParent | None:
    """The caller's trace context in flat header lines (name, `: `, value, line end), None if none is valid."""
    parents, states = [], []
    for position in range(0, len(headers), 4):
        name = headers[position].lower()
        if name == TRACEPARENT:
            parents.append(headers[position + 2].strip())
        elif name == TRACESTATE:
            states.append(headers[position + 2].strip())
    match = _PARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if match is None or (match[1] == b"00" and match[5] is not None):
        return None
    state = b",".join(filter(None, states))
    sampled = bool(int(match[4], 16) & _SAMPLED)
    return TraceParent(match[2], match[3], sampled, state if len(state) <= MAX_STATE_BYTES else b"")


def trace_headers(trace_id: bytes, span_id: bytes, state: bytes, *, sampled: bool) -> bytes:
    """The header lines that make the span `span_id` the parent of whatever comes next."""
    lines = b"%b: 00-%b-%b-%02x\r\n" % (TRACEPARENT, trace_id, span_id, sampled)
    return lines + b"%b: %b\r\n" % (TRACESTATE, state) if state else lines
