"""However the network cuts an event stream, the same events come out of it."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from poise.wire.sse import KEPT_HEAD_BYTES, MAX_EVENT_BYTES, EventCutter, event_lines
from support.http_bytes import cuts, single_bytes

Events = list[tuple[bytes | None, bytes]]

_LINE_END = re.compile(rb"\r\n|\n|\r")


def read_as_the_standard_says(stream: bytes) -> Events:
    """The events of a stream whose last line has ended, read line by line (HTML standard, 9.2.6)."""
    events: Events = []
    kind: bytes | None = None
    data: list[bytes] = []
    for line in _LINE_END.split(stream)[:-1]:
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if not line:
            if data or kind is not None:
                events.append((kind, b"\n".join(data)))
            kind, data = None, []
        elif name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value
    return events


def feed_all(pieces: list[bytes]) -> tuple[EventCutter, Events]:
    cutter = EventCutter()
    return cutter, [event for piece in pieces for event in event_lines(cutter.feed(piece))]


def cut_anywhere(data: st.DataObject, stream: bytes) -> list[bytes]:
    if data.draw(st.booleans(), label="every byte alone"):
        return single_bytes(stream)
    return cuts(stream, *data.draw(st.lists(st.integers(0, len(stream)), max_size=12), label="cuts"))


line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
texts = st.binary(max_size=12).map(lambda text: re.sub(rb"[\r\n]", b".", text))
lines = st.one_of(
    st.builds(b"data: %b".__mod__, texts),
    st.builds(b"data:%b".__mod__, texts),
    st.sampled_from([b"event: error", b"event:ping", b"id: 7", b"retry: 1000", b": comment", b":", b"data", b"odd"]),
)


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """One event or comment, with one kind of line end throughout, as every server writes them."""
    end = draw(line_ends)
    return b"".join(line + end for line in draw(st.lists(lines, min_size=1, max_size=3))) + end


streams = st.lists(events(), max_size=6)
newline_soup = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"data: x", b"event: e", b":"]), max_size=24
).map(b"".join)  # fmt: skip


@given(parts=streams, left_over=st.sampled_from([b"", b"d", b"data: unfinished", b"data: x\n", b"data: x\r\n"]),
       data=st.data())  # fmt: skip
def test_events_are_those_of_the_standard_wherever_the_stream_is_cut(
    parts: list[bytes], left_over: bytes, data: st.DataObject
) -> None:
    stream = b"".join(parts)
    cutter, found = feed_all(cut_anywhere(data, stream + left_over))
    assert found == read_as_the_standard_says(stream)
    assert cutter.rest == left_over
    assert cutter.between_events == (not left_over)


@given(parts=streams)
def test_it_is_known_at_every_byte_whether_an_event_has_ended(parts: list[bytes]) -> None:
    cutter = EventCutter()
    assert cutter.between_events
    for part in parts:
        for position, byte in enumerate(single_bytes(part), start=1):
            block = cutter.feed(byte)
            assert cutter.between_events == (position == len(part))
            assert block == (part if position == len(part) else b"")


@given(stream=newline_soup, data=st.data())
@example(stream=b"data: x\r\r\ndata: x\n\n", data=None)
@example(stream=b"data: x\r\n\ndata: x\n\r\n", data=None)
def test_any_bytes_give_the_events_of_one_feed(stream: bytes, data: st.DataObject | None) -> None:
    pieces = single_bytes(stream) if data is None else cut_anywhere(data, stream)
    at_once, expected = feed_all([stream])
    cutter, found = feed_all(pieces)
    assert found == expected
    assert bytes(cutter.rest).strip(b"\r\n") == bytes(at_once.rest).strip(b"\r\n")


@given(stream=newline_soup, data=st.data())
def test_a_begun_event_is_never_taken_for_none(stream: bytes, data: st.DataObject) -> None:
    if feed_all(cut_anywhere(data, stream))[0].between_events:
        assert re.search(rb"(?:\A|\r?\n\r?\n|\r\r)[\r\n]*\Z", stream)


@given(parts=streams, data=st.data())
def test_nothing_is_lost_or_made_up(parts: list[bytes], data: st.DataObject) -> None:
    stream, cutter = b"".join(parts), EventCutter()
    assert b"".join(map(cutter.feed, cut_anywhere(data, stream))) + cutter.rest == stream


sizes = st.integers(MAX_EVENT_BYTES - 6, MAX_EVENT_BYTES + 6) | st.integers(3 * MAX_EVENT_BYTES, 4 * MAX_EVENT_BYTES)


@given(size=sizes, end=line_ends, data=st.data())
def test_an_event_that_is_too_long_costs_no_other_event_and_no_memory(
    size: int, end: bytes, data: st.DataObject
) -> None:
    short, long = b"data: a" + end * 2, b"data: ".ljust(size - 2 * len(end), b"x") + end * 2
    stream = short + long + short
    near_the_ends = st.integers(len(short) + size - 8, len(stream)) | st.integers(0, len(short) + 3)
    positions = data.draw(st.lists(near_the_ends | st.integers(0, len(stream)), max_size=12))
    cutter, found = EventCutter(), []
    for piece in cuts(stream, *positions):
        found += event_lines(cutter.feed(piece))
        assert len(cutter.rest) <= MAX_EVENT_BYTES
    brief = (None, b"a")
    whole, beginning = long[6 : -2 * len(end)], long[6:KEPT_HEAD_BYTES]
    assert found in ([brief, (None, whole), brief], [brief, (None, beginning), brief])
    if size <= MAX_EVENT_BYTES:
        assert found[1] == (None, whole)
    assert cutter.between_events


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_within_an_event_that_is_too_long_no_event_has_ended(end: bytes) -> None:
    cutter = EventCutter()
    for _ in range(6):
        assert cutter.feed(b"x" * (MAX_EVENT_BYTES // 2)) == b""
        assert not cutter.between_events
    assert cutter.feed(end) == b""
    assert not cutter.between_events
    assert cutter.feed(end) == b"x" * KEPT_HEAD_BYTES + b"\n\n"
    assert cutter.between_events
