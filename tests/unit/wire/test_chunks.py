"""Chunk ends: whatever is taken for one whole chunk is one, wherever the network cut the body."""

from itertools import pairwise

import httptools
from hypothesis import given
from hypothesis import strategies as st

from poise.wire.chunks import ChunkWatch

payloads = st.lists(st.binary(min_size=1, max_size=12) | st.sampled_from([b"\r\n", b"\r\n5", b"3\r\n", b"x" * 5000]))
spellings = st.sampled_from([b"%x", b"%X", b"%04x", b"%x;a=b"])
cut_sets = st.sets(st.integers(0, 300), max_size=20)


def chunk(payload: bytes, spelling: bytes = b"%x") -> bytes:
    return spelling % len(payload) + b"\r\n" + payload + b"\r\n"


def cut(body: bytes, positions: set[int]) -> list[bytes]:
    ends = [0, *sorted(position for position in positions if 0 < position < len(body)), len(body)]
    return [body[start:end] for start, end in pairwise(ends) if end > start]


class Bodies:
    """What a real parser makes of reads."""

    def __init__(self) -> None:
        self.body = b""
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)


@given(payloads=payloads, positions=cut_sets, data=st.data())
def test_a_parser_that_is_spared_whole_chunks_reads_the_rest_as_if_it_had_not_been(
    payloads: list[bytes], positions: set[int], data: st.DataObject
) -> None:
    framed = [chunk(payload, data.draw(spellings)) for payload in payloads]
    body = b"".join(framed) + b"0\r\n\r\n"
    watch, parsed, spared = ChunkWatch(), Bodies(), b""
    order: list[bytes] = []
    for read in cut(body, positions | {len(b"".join(framed[:count])) for count in range(len(framed))}):
        if watch.is_one_chunk(read):
            spared = read.partition(b"\r\n")[2][:-2]
            assert chunk(spared) == read
            order.append(spared)
        else:
            before = len(parsed.body)
            parsed.feed(read)
            order.append(parsed.body[before:])
    assert b"".join(order) == b"".join(payloads)
    assert parsed.complete


@given(payloads=st.lists(st.binary(min_size=1, max_size=300), min_size=1))
def test_chunks_that_come_one_by_one_are_all_seen(payloads: list[bytes]) -> None:
    watch = ChunkWatch()
    assert all(watch.is_one_chunk(chunk(payload)) for payload in payloads)
    assert not watch.is_one_chunk(b"0\r\n\r\n")


@given(first=st.binary(min_size=1, max_size=50), second=st.binary(min_size=1, max_size=50), data=st.data())
def test_it_finds_its_way_again_after_a_cut_and_after_two_at_once(
    first: bytes, second: bytes, data: st.DataObject
) -> None:
    watch, body = ChunkWatch(), chunk(first) + chunk(second)
    # A size that is itself cut is not followed: that costs a parser, never a byte.
    inside = data.draw(st.integers(len(b"%x\r\n" % len(first)), len(chunk(first)) - 1))
    assert not watch.is_one_chunk(body[:inside])
    assert not watch.is_one_chunk(body[inside : len(chunk(first))])
    assert watch.is_one_chunk(chunk(second))
    assert not watch.is_one_chunk(body)
    assert watch.is_one_chunk(chunk(second))


def test_a_frame_that_does_not_fit_its_size_is_left_to_the_parser_for_good() -> None:
    for wrong in (b"5\r\nabcd\r\n", b"+4\r\nabcd\r\n", b"0x4\r\nabcd\r\n", b"4\nabcd\r\n", b"4\r\nabcdXX", b"\r\n\r\n"):
        watch = ChunkWatch()
        assert not watch.is_one_chunk(wrong), wrong
