"""The kit against itself: replica and client face to face, so that a failing gateway test is the gateway's."""

import asyncio
import random

import pytest

from support.apis import APIS, CHAT, COMMENT, events_of, without_comments
from support.http_bytes import STREAM_HEAD, answer, chunk, chunked, cuts, request, single_bytes
from support.raw_client import client
from support.scripted_replica import Exchange, ScriptedReplica, closed_port
from support.scripts import answers, closes, echoes, hangs, in_turn, resets, streams, writes
from support.transcript import Transcript, assert_same_bytes
from support.wire import PeerGone, until, within


async def test_a_request_cut_everywhere_arrives_whole_and_each_part_in_a_read_of_its_own() -> None:
    body = "körper 中".encode()
    for sent in (request("/x", body), request("/x", [b"k", "örper 中".encode()])):
        async with ScriptedReplica(echoes()) as replica, client(replica.port) as caller:
            answer = await caller.ask(*single_bytes(sent))
            assert (answer.status, bytes(answer.body), answer.complete) == (200, body, True)
            exchange = replica.requests[0]
            assert exchange.body == body
            assert exchange.head.raw + b"" == sent[: len(exchange.head.raw)]
            assert [size for _, size in exchange.wire.reads] == [1] * len(sent)


async def test_an_answer_cut_anywhere_is_read_the_same() -> None:
    body = b"0123456789" * 3
    for whole in (answer(200, body), answer(200, [body[:7], body[7:]])):
        for position in range(1, len(whole)):
            async with ScriptedReplica(writes(*cuts(whole, position))) as replica, client(replica.port) as caller:
                got = await caller.ask(request("/x", b""))
                assert (bytes(got.body), got.complete, got.cut_short) == (body, True, False)
                assert len(caller.wire.reads) == 2


async def test_keep_alive_and_pipelining_keep_the_order() -> None:
    async with ScriptedReplica(echoes()) as replica, client(replica.port) as caller:
        await caller.send(
            request("/1", b"one") + request("/2", [b"t", b"wo"]) + request("/3", b""),
            methods=(b"POST", b"POST", b"POST"),
        )
        assert [bytes((await caller.answer()).body) for _ in range(3)] == [b"one", b"two", b""]
        assert [exchange.target for exchange in replica.requests] == [b"/1", b"/2", b"/3"]
        assert replica.connections == 1


@pytest.mark.parametrize(("end", "error"), [(Exchange.fin, False), (Exchange.reset, True)], ids=["fin", "reset"])
async def test_an_answer_that_is_cut_short_is_told_from_a_whole_one(end, error) -> None:
    short = answer(200, [b"half"])[: -len(b"0\r\n\r\n")]
    async with ScriptedReplica(writes(short, then=end)) as replica, client(replica.port) as caller:
        await caller.send(request("/x", b""))
        got = await caller.head()
        await got.read_until(b"half")
        await got.finish()
        assert (got.complete, got.cut_short) == (False, True)
        assert (caller.wire.error is not None) is error


async def test_a_body_that_ends_with_the_connection() -> None:
    whole = answer(200, b"until the end", until_close=True)
    async with ScriptedReplica(writes(whole, then=Exchange.fin)) as replica, client(replica.port) as caller:
        got = await caller.ask(request("/x", b""))
        assert (bytes(got.body), got.complete) == (b"until the end", True)


@pytest.mark.parametrize("script", [closes, resets])
async def test_no_answer_at_all_raises(script) -> None:
    async with ScriptedReplica(script) as replica, client(replica.port) as caller:
        await caller.send(request("/x", b""))
        with pytest.raises(PeerGone):
            await caller.head()


async def test_a_hang_up_is_seen_with_its_time_while_the_script_hangs() -> None:
    async with ScriptedReplica(hangs) as replica:
        async with client(replica.port) as caller:
            await caller.send(request("/x", b""))
            exchange = await replica.request()
            assert exchange.peer_closed_at_s is None
            assert replica.active == 1
        left_at_s = asyncio.get_running_loop().time()
        assert await exchange.wire.wait_closed() - left_at_s < 1
        await until(lambda: replica.active == 0, "the script to end")


@pytest.mark.parametrize("reset", [False, True])
async def test_idle_connections_are_closed_when_told(reset) -> None:
    from support.wire import Wire

    end = Wire.reset if reset else Wire.fin
    async with ScriptedReplica(answers(), idle_s=0.05, idle_end=end) as replica, client(replica.port) as caller:
        await caller.ask(request("/x", b""))
        answered_at_s = caller.wire.reads[-1][0]
        assert await caller.wire.wait_closed() - answered_at_s > 0.04
        assert (caller.wire.error is not None) is reset


async def test_a_slow_reader_stops_the_writer_and_loses_nothing() -> None:
    body = random.Random(1).randbytes(1 << 20) * 12
    replica = ScriptedReplica(writes(answer(200, body)), send_buffer_bytes=1 << 16)
    async with replica, client(replica.port, receive_buffer_bytes=1 << 14) as caller:
        caller.stop_reading()
        await caller.send(request("/x", b""))
        exchange = await replica.request()
        await until(lambda: exchange.wire.write_paused, "the replica to be held up")
        caller.read_again()
        got = await caller.answer()
        assert_same_bytes(got.body, body)


async def test_events_are_handed_out_one_by_one_as_they_come() -> None:
    gate = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, chunk(COMMENT), chunk(CHAT.output[:9]), chunk(CHAT.output[9:]))
        await gate.wait()
        await exchange.write(chunked([CHAT.ending]))

    async with ScriptedReplica(script) as replica, client(replica.port) as caller:
        await caller.send(request("/x", b""))
        got = await caller.head()
        assert [await got.event(), await got.event()] == [COMMENT, CHAT.output]
        assert not got.complete
        gate.set()
        assert [await got.event(), await got.event()] == [CHAT.ending, b""]
        assert got.complete
        assert without_comments(got.body) == CHAT.output + CHAT.ending


async def test_scripts_in_turn_and_streams() -> None:
    script = in_turn(answers(503), *(streams(api=api) for api in APIS))
    async with ScriptedReplica(script) as replica, client(replica.port) as caller:
        assert (await caller.ask(request("/x", b""))).status == 503
        for api in APIS:
            got = await caller.ask(request("/x", b""))
            assert_same_bytes(got.body, api.whole)
            assert [event + b"\n\n" for event in events_of(got.body)] == list(api.events)
        assert replica.most_active == 1


async def test_informational_answers_come_before_the_final_one() -> None:
    script = writes(b"HTTP/1.1 100 Continue\r\n\r\n", answer(200, b"{}"))
    async with ScriptedReplica(script) as replica, client(replica.port) as caller:
        got = await caller.ask(request("/x", b""))
        assert (got.status, len(got.interim)) == (200, 1)


async def test_a_script_that_fails_fails_the_test() -> None:
    async def script(exchange: Exchange) -> None:
        raise LookupError("in the script")

    with pytest.raises(LookupError, match="in the script"):
        async with ScriptedReplica(script) as replica, client(replica.port) as caller:
            await caller.send(request("/x", b""))
            await caller.wire.wait_closed()


async def test_waits_end_with_what_was_waited_for() -> None:
    async with ScriptedReplica(hangs) as replica, client(replica.port) as caller:
        await caller.send(request("/x", b""))
        with pytest.raises(AssertionError, match=r"waited 0.05 s for b'\\r\\n\\r\\n'"):
            await caller.head(within_s=0.05)
    with pytest.raises(AssertionError, match="for ever"):
        await within(0.01, asyncio.Event().wait(), "for ever")


async def test_a_closed_port_refuses() -> None:
    with closed_port() as sock, pytest.raises(ConnectionRefusedError):
        async with client(sock.getsockname()[1]):
            raise AssertionError("connected")


def test_a_transcript_shows_where_the_conversation_parted() -> None:
    transcript = Transcript()
    transcript.note("r1", "gets POST /x")
    transcript.note("r1", "resets")
    transcript.assert_is("""
        r1: gets POST /x

        r1: resets
    """)
    with pytest.raises(AssertionError, match=r"(?s)-r1: closes.*\+r1: resets"):
        transcript.assert_is("r1: gets POST /x\nr1: closes")


def test_bytes_that_differ_are_shown_where_they_differ() -> None:
    assert_same_bytes(bytearray(b"same"), b"same")
    with pytest.raises(AssertionError, match="differs at byte 2 of 4"):
        assert_same_bytes(b"saXe", b"same")
    with pytest.raises(AssertionError, match="differs at byte 4 of 4"):
        assert_same_bytes(b"same and more", b"same")


def test_both_framings_at_once_are_noticed() -> None:
    from support.http_reading import Head

    with pytest.raises(AssertionError, match="both framings"):
        _ = Head(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n").framing
