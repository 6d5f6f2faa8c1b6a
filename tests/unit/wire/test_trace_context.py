"""W3C trace context: what is valid is read whatever comes beside it, what is not counts as absent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.wire.trace_context import MAX_STATE_BYTES, TraceParent, read_trace_parent, trace_headers


def lines(*headers: tuple[bytes, bytes]) -> list[bytes]:
    return [part for name, value in headers for part in (name, b": ", value, b"\r\n")]


def parsed(text: bytes) -> list[bytes]:
    return lines(*((name, value) for name, _, value in (line.partition(b": ") for line in text.split(b"\r\n") if line)))


def hex_id(digits: int) -> st.SearchStrategy[bytes]:
    return st.integers(1, 16**digits - 1).map(lambda number: b"%0*x" % (digits, number))


@given(trace=hex_id(32), span=hex_id(16), sampled=st.booleans(), state=st.sampled_from([b"", b"a=1", b"a=1,b=2"]))
def test_what_is_written_is_read(trace: bytes, span: bytes, sampled: bool, state: bytes) -> None:
    headers = parsed(trace_headers(trace, span, state, sampled=sampled))
    others = lines((b"Host", b"x"), (b"traceparents", b"x"))
    for held in (headers, others + headers, headers + others):
        assert read_trace_parent(held) == TraceParent(trace, span, sampled, state)


TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
GOOD = b"00-%b-%b-01" % (TRACE, SPAN)


@pytest.mark.parametrize(
    "value",
    [
        b"", b"00", GOOD[:-1], GOOD + b"0", GOOD + b"-x", GOOD.upper(), b"ff" + GOOD[2:], b"0" + GOOD[2:],
        b"00-%b-%b-01" % (b"0" * 32, SPAN), b"00-%b-%b-01" % (TRACE, b"0" * 16), GOOD.replace(b"-", b"_"),
    ],
)  # fmt: skip
def test_what_is_not_valid_is_absent(value: bytes) -> None:
    assert read_trace_parent(lines((b"traceparent", value), (b"tracestate", b"a=1"))) is None


def test_two_parents_are_none() -> None:
    assert read_trace_parent(lines((b"traceparent", GOOD), (b"Traceparent", GOOD))) is None


@pytest.mark.parametrize("value", [b" " + GOOD + b" ", b"cc-%b-%b-09-what comes" % (TRACE, SPAN)])
def test_spaces_and_later_versions_are_understood(value: bytes) -> None:
    assert read_trace_parent(lines((b"TraceParent", value))) == TraceParent(TRACE, SPAN, True)


def test_states_are_joined_and_too_long_ones_dropped() -> None:
    parent = (b"traceparent", GOOD)
    found = read_trace_parent(lines((b"tracestate", b"a=1"), parent, (b"Tracestate", b""), (b"tracestate", b"b=2")))
    assert found is not None
    assert found.state == b"a=1,b=2"
    found = read_trace_parent(lines(parent, (b"tracestate", b"a=" + b"x" * MAX_STATE_BYTES)))
    assert found is not None
    assert found.state == b""
