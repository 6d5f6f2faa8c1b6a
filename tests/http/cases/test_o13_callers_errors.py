"""Callers' errors and hang-ups, however many, are no fault of the replica: its breaker never moves."""

import pytest

from poise.core.request import Outcome
from poise.health.breaker import BreakerState
from poise.health.settings import BreakerSettings
from support.apis import CHAT
from support.gateway import Gateway, gateway, short_settings
from support.http_bytes import request
from support.scripted_replica import Exchange, Script, ScriptedReplica, closed_port
from support.scripts import answers, answers_error, closes, hangs, streams, writes

CALLERS_FAULTS = (400, 401, 404, 413, 422, 429)
TIMES = 20
LIMIT = BreakerSettings(failures=5)
STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


def body(wish: object, *, stream: bool = False) -> bytes:
    return CHAT.request_body(stream=stream, user=str(wish))


async def as_wished(exchange: Exchange) -> None:
    """Answers with the status that the request asks for, hangs, or answers well."""
    for status in CALLERS_FAULTS:
        if b'"%d"' % status in exchange.body:
            await answers_error(status)(exchange)
            return
    await (hangs if b'"hang"' in exchange.body else answers())(exchange)


def breaker_moves(poise: Gateway, name: str = "r1") -> int:
    return sum(poise.replica(name).condition.breaker.moves.values())


@STREAM_OR_NOT
async def test_a_hundred_errors_of_callers_and_ten_hang_ups_leave_the_breaker_closed(stream: bool) -> None:
    async with ScriptedReplica(as_wished) as first, ScriptedReplica(answers()) as second:
        async with gateway(first, second, breaker=LIMIT) as poise:
            sent = 0
            for status in CALLERS_FAULTS:
                for _ in range(TIMES):
                    assert (await poise.ask(request(body=body(status, stream=stream)))).status == status
                sent += TIMES
                for _ in range(2):
                    caller = await poise.client()
                    await caller.send(request(body=body("hang", stream=stream)))
                    sent += 1
                    await first.request(sent)
                    caller.close()
                    await poise.settled()
            assert (await poise.ask(request(body=body("nothing")))).status == 200
            assert breaker_moves(poise) == 0
            assert len(first.requests) == len(CALLERS_FAULTS) * (TIMES + 2) + 1, "each was sent to one engine once"
            assert second.requests == []
            assert poise.outcomes == {
                Outcome.CALLER_ERROR: len(CALLERS_FAULTS) * TIMES,
                Outcome.CANCELLED: len(CALLERS_FAULTS) * 2,
                Outcome.COMPLETED: 1,
            }


@pytest.mark.parametrize("status", [400, 429])
async def test_an_error_of_the_callers_inside_a_stream_is_one_too(status: int) -> None:
    async with ScriptedReplica(streams(CHAT.error_event(status), b"data: [DONE]\n\n")) as replica:
        async with gateway(replica, breaker=LIMIT) as poise:
            for _ in range(TIMES):
                assert (await poise.ask(request(body=body("", stream=True)))).status == status
            assert breaker_moves(poise) == 0


@STREAM_OR_NOT
async def test_a_full_queue_is_no_fault(stream: bool) -> None:
    busy = streams(CHAT.error_event(503), b"data: [DONE]\n\n") if stream else answers_error(503)
    async with ScriptedReplica(busy) as first, ScriptedReplica(busy) as second:
        async with gateway(first, second, breaker=LIMIT) as poise:
            for _ in range(TIMES):
                assert (await poise.ask(request(body=body("", stream=stream)))).status == 503
            assert breaker_moves(poise) + breaker_moves(poise, "r2") == 0


FAULTS: dict[str, Script] = {
    "500": answers_error(500),
    "a proxy's 503": writes(b"HTTP/1.1 503 Down\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\ndown"),
    "lost": closes,
    "not HTTP": writes(b"SSH-2.0 x y\r\n", then=Exchange.fin),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_replicas_own_failures_open_it(fault: str) -> None:
    async with ScriptedReplica(FAULTS[fault]) as first, ScriptedReplica(answers()) as second:
        async with gateway(first, second, breaker=LIMIT) as poise:
            for _ in range(LIMIT.failures + 3):
                assert (await poise.ask(request(body=body("")))).status == 200
            assert poise.replica("r1").condition.breaker.state is BreakerState.OPEN
            assert len(first.requests) == LIMIT.failures
            assert len(second.requests) == LIMIT.failures + 3


async def test_where_nothing_listens_one_try_is_enough() -> None:
    with closed_port() as sock:
        async with ScriptedReplica(answers()) as second:
            async with gateway(sock.getsockname()[1], second, breaker=LIMIT) as poise:
                for _ in range(5):
                    assert (await poise.ask(request(body=body("")))).status == 200
                assert poise.counters.retries.total() == 1


async def test_the_only_replica_is_tried_whatever_its_breaker_says() -> None:
    async with ScriptedReplica(answers_error(500)) as replica:
        async with gateway(replica, breaker=LIMIT, settings=short_settings(first_output_s=0.5)) as poise:
            for _ in range(2 * LIMIT.failures):
                assert (await poise.ask(request(body=body("")))).status == 500
            assert poise.replica("r1").condition.breaker.state is BreakerState.OPEN
            replica.script = answers()
            assert (await poise.ask(request(body=body("")))).status == 200
            assert poise.replica("r1").condition.breaker.state is BreakerState.CLOSED
