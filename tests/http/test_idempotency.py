"""Requests with an idempotency key: one execution, whoever asks, hangs up or comes again."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from poise.admission.idempotency import IdempotencySettings
from poise.admission.keys_file import parse_keys
from poise.core.request import Outcome
from poise.proxy.settings import DataPathSettings
from support.apis import APIS, CHAT, Api
from support.gateway import Gateway, gateway, short_settings
from support.http_bytes import answer, request, to_json
from support.refusals import error_of
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, answers_error, hangs, in_turn, resets, streams, writes
from support.wire import until

KEY = "order-7"


def keyed(key: str = KEY, *, api: Api = CHAT, stream: bool = False, **more: Any) -> bytes:
    headers = more.pop("headers", [])
    return request(api.path, api.request_body(stream=stream, **more), headers=[("Idempotency-Key", key), *headers])


class Gate:
    """A script that numbers its answers and gives each when it is let."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await self.open.wait()
        await exchange.write(answer(200, to_json({**CHAT.plain, "id": f"answer-{exchange.number}"})))


async def joined(poise: Gateway, count: int) -> None:
    """Come back when `count` requests wait for one answer."""
    calls = poise.data_path.keyed._calls
    await until(lambda: any(len(call.members) == count for call in calls.values()), f"{count} callers of one request")


# -- while it runs


async def test_the_same_request_joins_the_first_and_gets_its_answer() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica) as poise:
        callers = [await poise.client(f"c{number}") for number in range(4)]
        for caller in callers:
            await caller.send(keyed())
        await joined(poise, 4)
        gate.open.set()
        got = [await caller.answer() for caller in callers]
        assert [one.status for one in got] == [200] * 4
        assert len({bytes(one.body) for one in got}) == 1 and json.loads(got[0].body)["id"] == "answer-1"
        assert [one.value("idempotent-replayed") for one in got] == [None, b"true", b"true", b"true"]
        assert len({one.value("x-request-id") for one in got}) == 4
        assert {one.value("x-poise-replica") for one in got} == {b"r1"}
        assert len(replica.requests) == 1
        assert replica.requests[0].head.value("idempotency-key") == KEY.encode()
        assert poise.outcomes == {Outcome.COMPLETED: 4}
        assert poise.counters.replays == {"joined": 3}
        assert len(poise.log.lines) == 4


async def test_each_who_waited_has_an_outcome_of_its_own() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica) as poise:
        callers = [await poise.client(f"c{number}") for number in range(3)]
        for number, caller in enumerate(callers):
            await caller.send(keyed())
            await joined(poise, number + 1)
        callers[1].close()
        await joined(poise, 2)
        gate.open.set()
        for caller in (callers[0], callers[2]):
            await caller.answer()
        assert poise.outcomes == {Outcome.COMPLETED: 2, Outcome.CANCELLED: 1}
        assert len({line.request_id for line in poise.log.lines}) == 3


async def test_those_who_joined_what_the_gateway_refuses_are_refused() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        (only,) = poise.fleet
        only.available = False
        callers = [await poise.client(f"c{number}") for number in range(2)]
        for number, caller in enumerate(callers):
            await caller.send(keyed())
            await joined(poise, number + 1)
        await poise.data_path.close()
        assert [(await caller.answer()).status for caller in callers] == [503, 503]
        assert [line.outcome for line in poise.log.lines] == [Outcome.REFUSED] * 2


async def test_the_execution_goes_on_when_its_first_caller_leaves() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica) as poise:
        first, second = await poise.client("first"), await poise.client("second")
        await first.send(keyed())
        await replica.request()
        await second.send(keyed())
        await joined(poise, 2)
        first.reset()
        await joined(poise, 1)
        gate.open.set()
        got = await second.answer()
        assert (got.status, json.loads(got.body)["id"]) == (200, "answer-1")
        assert len(replica.requests) == 1


@pytest.mark.parametrize("first_leaves_first", [True, False])
async def test_the_last_caller_to_leave_takes_the_request_with_it(first_leaves_first: bool) -> None:
    async with ScriptedReplica(hangs) as replica, gateway(replica) as poise:
        callers = [await poise.client("first"), await poise.client("second")]
        for number, caller in enumerate(callers, 1):
            await caller.send(keyed())
            await joined(poise, number)
        seen = await replica.request()
        one, other = callers if first_leaves_first else reversed(callers)
        one.close()
        await joined(poise, 1)
        assert seen.peer_closed_at_s is None
        other.close()
        await seen.wire.wait_closed()
        await poise.settled()
        assert len(poise.data_path.keyed.store) == 0


async def test_a_key_whose_request_was_given_up_may_be_used_again() -> None:
    async with ScriptedReplica(in_turn(hangs, answers())) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(keyed())
        seen = await replica.request()
        caller.close()
        await seen.wire.wait_closed()
        await poise.settled()
        got = await poise.ask(keyed())
        assert (got.status, got.value("idempotent-replayed"), len(replica.requests)) == (200, None, 2)


@pytest.mark.parametrize("status", [500, 503])
async def test_those_who_joined_a_failure_are_told_of_it_and_the_next_tries_again(status: int) -> None:
    gate = asyncio.Event()

    async def fails(exchange: Exchange) -> None:
        await gate.wait()
        await answers_error(status, "the engine's words")(exchange)

    async with ScriptedReplica(in_turn(fails, answers())) as replica, gateway(replica) as poise:
        callers = [await poise.client("a"), await poise.client("b")]
        for caller in callers:
            await caller.send(keyed())
        await joined(poise, 2)
        gate.set()
        for caller in callers:
            got = await caller.answer()
            assert (got.status, error_of(got)["message"]) == (status, "the engine's words")
        assert (await poise.ask(keyed())).status == 200
        assert len(replica.requests) == 2


async def test_another_body_with_the_same_key_is_refused() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(keyed())
        await joined(poise, 1)
        other_path = request("/v1/completions", CHAT.request_body(stream=False), headers=[("Idempotency-Key", KEY)])
        for other in (keyed(max_tokens=1), other_path):
            got = await poise.ask(other)
            assert (got.status, error_of(got)["code"]) == (422, "idempotency_key_reused")
        gate.open.set()
        await caller.answer()
        assert (await poise.ask(keyed(max_tokens=1))).status == 422, "when it has been answered as well"
        assert len(replica.requests) == 1


# -- afterwards


@pytest.mark.parametrize("status", [200, 400, 404])
async def test_a_final_answer_is_given_again(status: int) -> None:
    value = to_json({"error": {"message": "no", "code": status}} if status >= 400 else CHAT.plain)
    script = writes(answer(status, value, headers=[("x-engine", "1"), ("x-engine", "2")]))
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        first = await poise.ask(keyed())
        again = await poise.ask(keyed())
        assert again.status == first.status == status
        assert bytes(again.body) == bytes(first.body) == value
        assert (first.value("idempotent-replayed"), again.value("idempotent-replayed")) == (None, b"true")
        assert again.head.values("x-engine") == [b"1", b"2"]
        assert again.value("content-type") == first.value("content-type")
        assert len(replica.requests) == 1
        assert poise.counters.replays == {"stored": 1}


@pytest.mark.parametrize("script", [answers_error(429), answers_error(500), answers_error(503), resets])
async def test_what_is_not_final_is_carried_out_again(script: Any) -> None:
    async with ScriptedReplica(in_turn(script, answers())) as replica, gateway(replica) as poise:
        assert (await poise.ask(keyed())).status >= 400
        got = await poise.ask(keyed())
        assert (got.status, got.value("idempotent-replayed")) == (200, None)
        assert len(replica.requests) == 2


async def test_what_the_gateway_refuses_is_not_kept() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        poise.fleet.serves(next(iter(poise.fleet)), ("other",))
        assert (await poise.ask(keyed())).status == 404
        poise.fleet.serves(next(iter(poise.fleet)), ("m",))
        assert (await poise.ask(keyed())).status == 200


@pytest.mark.parametrize("body_bytes", [100, 3 * 1024 * 1024])
@pytest.mark.parametrize("framing", ["length", "chunks", "close"])
async def test_the_bytes_are_the_same_however_they_came(body_bytes: int, framing: str) -> None:
    body = b'{"id":"1","x":"' + b"y" * body_bytes + b'"}'
    pieces: Any = [body[:50], body[50:]] if framing == "chunks" else body
    script = writes(answer(200, pieces, until_close=framing == "close"), then=Exchange.fin)
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        for replayed in (None, b"true"):
            got = await poise.ask(keyed())
            assert (got.status, got.complete, bytes(got.body) == body) == (200, True, True)
            assert got.value("content-length") == str(len(body)).encode()
            assert got.value("idempotent-replayed") == replayed


async def test_an_answer_that_breaks_off_is_an_error_for_all_and_not_kept() -> None:
    body = b"z" * 2 * 1024 * 1024
    broken = writes(answer(200, body)[:-1000], then=Exchange.reset)
    async with ScriptedReplica(in_turn(broken, answers())) as replica, gateway(replica) as poise:
        got = await poise.ask(keyed())
        assert (got.status, error_of(got)["code"]) == (502, "replica_lost")
        assert (await poise.ask(keyed())).status == 200


def keeping(**limits: Any) -> DataPathSettings:
    return replace(short_settings(), idempotency=IdempotencySettings(**limits))


async def test_an_answer_that_is_too_long_to_keep_is_not_carried_out_again() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica, settings=keeping(max_bytes=1100)) as poise:
        assert (await poise.ask(keyed())).status == 200
        got = await poise.ask(keyed())
        assert (got.status, error_of(got)["code"]) == (409, "idempotency_answer_not_kept")
        assert len(replica.requests) == 1


async def test_an_answer_that_is_too_old_is_dropped() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica, settings=keeping(max_age_s=0.2)) as poise:
        await poise.ask(keyed())
        await until(lambda: poise.data_path.keyed.store.kept_bytes == 0, "the answer to be dropped")
        assert (await poise.ask(keyed())).value("idempotent-replayed") is None
        assert len(replica.requests) == 2


# -- streams


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_a_second_stream_is_refused_while_the_first_runs_and_afterwards(api: Api) -> None:
    gate = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await gate.wait()
        await streams(api=api)(exchange)

    async with ScriptedReplica(waits) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(keyed(api=api, stream=True))
        await replica.request()
        got = await poise.ask(keyed(api=api, stream=True))
        assert (got.status, error_of(got)["code"]) == (409, "idempotency_key_in_use")
        gate.set()
        assert bytes((await caller.answer()).body) == api.whole
        got = await poise.ask(keyed(api=api, stream=True))
        assert (got.status, error_of(got)["code"]) == (409, "idempotency_answer_not_kept")
        assert len(replica.requests) == 1


async def test_a_stream_that_is_held_counts_as_running() -> None:
    settings = short_settings(hold_s=0.1)
    async with ScriptedReplica(hangs) as replica, gateway(replica, settings=settings) as poise:
        caller = await poise.client()
        await caller.send(keyed(stream=True))
        got = await caller.head()
        assert (await got.event()).startswith(b":")
        assert (await poise.ask(keyed(stream=True))).status == 409
        caller.close()
        await (await replica.request()).wire.wait_closed()


@pytest.mark.parametrize("how", ["refused", "broken", "cancelled"])
async def test_a_stream_that_came_to_nothing_may_be_tried_again(how: str) -> None:
    scripts = {
        "refused": streams(CHAT.error_event(503)),
        "broken": streams(*CHAT.events[:2], then=Exchange.reset),
        "cancelled": streams(*CHAT.events[:2], then=Exchange.hang),
    }
    async with ScriptedReplica(in_turn(scripts[how], streams())) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(keyed(stream=True))
        if how == "cancelled":
            await (await caller.head()).event()
            caller.reset()
        else:
            await caller.answer()
        await poise.settled()
        assert bytes((await poise.ask(keyed(stream=True))).body) == CHAT.whole
        assert len(replica.requests) == 2


# -- with retries, whose key it is, and what is not a key


async def test_a_retry_within_one_execution_is_not_a_second_one() -> None:
    async with ScriptedReplica(answers_error(503)) as first, ScriptedReplica(answers()) as second:
        async with gateway(first, second) as poise:
            for _ in range(2):
                got = await poise.ask(keyed())
                assert (got.status, got.value("x-poise-replica")) == (200, b"r2")
            assert (len(first.requests), len(second.requests)) == (1, 1)


KEYS = parse_keys("keys: [{name: team-a, key: a}, {name: team-b, key: b}]")


@pytest.mark.parametrize("keys", [KEYS, None])
async def test_each_callers_keys_are_its_own(keys: Any) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica, keys=keys) as poise:
        for caller in ("a", "b", "a"):
            got = await poise.ask(keyed(headers=[("Authorization", f"Bearer {caller}")]))
            assert got.status == 200
        assert got.value("idempotent-replayed") == b"true"
        assert len(replica.requests) == 2


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_what_cannot_be_a_key_is_refused(key: str) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        got = await poise.ask(keyed(key))
        assert (got.status, error_of(got)["code"], replica.requests) == (400, "bad_idempotency_key", [])
        assert (await poise.ask(keyed("x" * 255))).status == 200


async def test_a_key_of_a_request_that_changes_nothing_is_passed_on_and_no_more() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        for _ in range(2):
            got = await poise.ask(
                request("/v1/responses/resp_1", None, method="GET", headers=[("Idempotency-Key", KEY)])
            )
            assert got.value("idempotent-replayed") is None
        assert len(replica.requests) == 2


async def test_answers_come_in_turn_on_one_connection() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(keyed() * 3, methods=(b"POST",) * 3)
        got = [await caller.answer() for _ in range(3)]
        assert [one.value("idempotent-replayed") for one in got] == [None, b"true", b"true"]
        assert len(replica.requests) == 1


async def test_the_stock_client_raises_what_fits() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica) as poise, poise.openai() as client:

        async def ask(text: str, *, stream: bool = False, key: str = KEY) -> Any:
            return await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": text}], stream=stream,
                extra_headers={"Idempotency-Key": key},
            )  # fmt: skip

        first = asyncio.get_running_loop().create_task(ask("x"), name="kit first")
        await joined(poise, 1)
        with pytest.raises(openai.UnprocessableEntityError):
            await ask("y")
        with pytest.raises(openai.BadRequestError):
            await ask("x", key="x" * 256)
        gate.open.set()
        assert (await ask("x")).id == (await first).id == "answer-1"
        await (await ask("x", stream=True, key="s")).close()
        assert len(replica.requests) == 2


async def test_the_gateway_that_stops_tells_all_who_wait() -> None:
    async with ScriptedReplica(hangs) as replica, gateway(replica) as poise:
        callers = [await poise.client("a"), await poise.client("b")]
        for caller in callers:
            await caller.send(keyed())
        await joined(poise, 2)
        await replica.request()
        await poise.data_path.close()
        for caller in callers:
            assert (await caller.answer()).status == 503
        await (await replica.request()).wire.wait_closed()


# -- memory


def endless(mebibytes: int) -> Any:
    """A script that writes an answer of so many MiB."""

    async def script(exchange: Exchange) -> None:
        head, piece = answer(200, b"x" * mebibytes * 2**20).split(b"\r\n\r\n", 1)[0], b"x" * 2**20
        await exchange.write(head + b"\r\n\r\n", *[piece] * mebibytes)

    return script


async def test_an_answer_that_is_taken_down_counts_as_memory_and_is_given_up_where_there_is_none() -> None:
    settings = short_settings(limits={"buffered_bytes": 4 * 2**20})
    async with (
        ScriptedReplica(in_turn(endless(200), answers())) as replica,
        gateway(replica, settings=settings) as poise,
    ):
        callers = [await poise.client("a"), await poise.client("b")]
        for caller in callers:
            await caller.send(keyed())
        await joined(poise, 2)
        for caller in callers:
            got = await caller.answer()
            assert (got.status, error_of(got)["code"]) == (503, "buffers_full")
        await (await replica.request()).wire.wait_closed()
        await poise.settled()
        assert poise.replica("r1").condition.good
        assert (await poise.ask(keyed())).status == 200


async def test_those_who_do_not_take_a_large_answer_share_its_bytes() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    async with ScriptedReplica(endless(20)) as replica, gateway(replica) as poise:
        assert len((await poise.ask(keyed())).body) == 20 * 2**20
        before_bytes = resident_bytes()
        for _ in range(10):
            caller = await poise.client(receive_buffer_bytes=4096)
            caller.stop_reading()
            await caller.send(keyed())
        await until(lambda: poise.counters.replays == {"stored": 10}, "all to be answered")
        assert resident_bytes() - before_bytes < 100 * 2**20
        assert len(replica.requests) == 1


async def test_an_answer_cut_by_the_gateways_end_is_not_the_replicas_fault() -> None:
    async def stops_in_the_middle(exchange: Exchange) -> None:
        await exchange.write(answer(200, b"z" * 3 * 2**20)[: 2 * 2**20])
        await exchange.hang()

    async with ScriptedReplica(stops_in_the_middle) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(keyed())
        await until(lambda: poise.counters.buffered_bytes > 2**20, "the answer to begin")
        await poise.data_path.close()
        got = await caller.answer()
        assert (got.status, error_of(got)["code"]) == (503, "gateway_stopped")
        await (await replica.request()).wire.wait_closed()
