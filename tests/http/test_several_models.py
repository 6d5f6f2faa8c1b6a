"""Several models behind one gateway: who is asked for which, under which name, and what is said of unknown ones."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import openai
import pytest

from poise.routing.model_names import ModelNames
from support.apis import CHAT
from support.gateway import Gateway, gateway
from support.http_bytes import request, to_json
from support.refusals import error_of
from support.scripted_replica import Script, ScriptedReplica
from support.scripts import answers, answers_error, hangs, resets, streams


@asynccontextmanager
async def serving(
    *models: str | None, scripts: dict[str, Script] | None = None, names: ModelNames | None = None
) -> AsyncIterator[tuple[Gateway, list[ScriptedReplica]]]:
    """A gateway over one replica for each of `models`, a name, several in one text, or None where it is not known."""
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(ScriptedReplica((scripts or {}).get(model or "", answers())))
            for model in models
        ]
        poise = await stack.enter_async_context(gateway(*replicas))
        for replica, served in zip(poise.fleet, models, strict=True):
            if served is not None:
                poise.fleet.serves(replica, tuple(served.split()))
        if names is not None:
            poise.data_path.names = names
        yield poise, replicas


def chat(model: object, **more: object) -> bytes:
    return request(body=to_json({**CHAT.body, "model": model, **more}))


def models_seen(replica: ScriptedReplica) -> list[str]:
    return [json.loads(seen.body)["model"] for seen in replica.requests]


# -- whom a name leads to


async def test_a_request_goes_to_a_replica_of_its_model_alone() -> None:
    async with serving("a", "b base-adapter", "b") as (poise, (a, b, other_b)):
        for model in ("b", "a", "base-adapter", "a"):
            assert (await poise.ask(chat(model))).status == 200
        assert (models_seen(a), models_seen(b), models_seen(other_b)) == (["a", "a"], ["b", "base-adapter"], [])


async def test_an_adapter_that_is_loaded_later_is_found() -> None:
    async with serving("base", "base") as (poise, (_, second)):
        assert (await poise.ask(chat("adapter"))).status == 404
        replica = poise.fleet.named("r2")
        assert replica is not None
        poise.fleet.serves(replica, ("base", "adapter"))
        assert (await poise.ask(chat("adapter"))).status == 200
        assert models_seen(second) == ["adapter"]


@pytest.mark.parametrize("model", ["", None])
async def test_a_request_that_names_no_model_goes_to_any_replica(model: object) -> None:
    async with serving("a", "b") as (poise, (a, _)):
        assert (await poise.ask(chat(model))).status == 200
        assert models_seen(a) == [model]


async def test_an_alias_reaches_the_replica_as_the_model_that_it_stands_for() -> None:
    async with serving("a", "b", names=ModelNames({"gpt-4": [("b", 1)]}, {})) as (poise, (a, b)):
        got = await poise.ask(chat("gpt-4"))
        assert (got.status, models_seen(a), models_seen(b)) == (200, [], ["b"])
        assert bytes(got.body) == to_json(CHAT.plain), "the answer is not touched"
        assert [(line.model, line.asked_model) for line in poise.log.lines] == [("b", "gpt-4")]
        await poise.ask(chat("b"))
        assert (poise.log.lines[-1].model, poise.log.lines[-1].asked_model) == ("b", None)


async def test_a_canary_keeps_its_sessions() -> None:
    names = ModelNames({"x": [("a", 1), ("b", 1)]}, {})
    async with serving("a", "b", names=names) as (poise, (a, b)):
        caller = await poise.client()
        for _ in range(2):
            for session in range(20):
                body = to_json({**CHAT.body, "model": "x"})
                await caller.ask(request(body=body, headers=[("X-Session-ID", f"s{session}")]))
        seen = [Counter(one.head.value("x-session-id") for one in replica.requests) for replica in (a, b)]
        assert set(seen[0].values()) == set(seen[1].values()) == {2}
        assert len(seen[0]) + len(seen[1]) == 20


async def test_names_can_be_replaced_while_the_gateway_runs() -> None:
    async with serving("a", "b", names=ModelNames({"x": [("a", 1)]}, {})) as (poise, (a, b)):
        await poise.ask(chat("x"))
        poise.data_path.names = ModelNames({"x": [("b", 1)]}, {})
        await poise.ask(chat("x"))
        assert (models_seen(a), models_seen(b)) == (["a"], ["b"])


def audio(model: str) -> bytes:
    body = (
        b'--X\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\xff\x00\r\n--X-\r\n'
        b'--X\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--X--\r\n' % model.encode()
    )
    return request("/v1/audio/transcriptions", body, headers=[("Content-Type", "multipart/form-data; boundary=X")])


async def test_a_forms_model_counts_like_any_other() -> None:
    async with serving("a", "whisper", names=ModelNames({"whisper-1": [("whisper", 1)]}, {})) as (poise, (a, b)):
        assert (await poise.ask(audio("whisper"))).status == 200
        assert (await poise.ask(audio("whisper-1"))).status == 200
        assert (await poise.ask(audio("nobody"))).status == 404
        plain, renamed = b.requests
        assert (a.requests, renamed.body) == ([], plain.body)


async def test_a_compressed_body_is_passed_on_as_it_is() -> None:
    async with serving("a", "b", names=ModelNames({"x": [("b", 1)]}, {})) as (poise, (a, _)):
        body = b"\x1f\x8b not looked at"
        await poise.ask(request(body=body, headers=[("Content-Encoding", "gzip")]))
        assert a.requests[0].body == body


# -- unknown names


async def test_an_unknown_model_is_a_404_that_names_the_known_ones_and_asks_nobody() -> None:
    async with serving("qwen", "llama", names=ModelNames({"gpt-4": [("qwen", 1)]}, {})) as (poise, replicas):
        got = await poise.ask(chat("nobody"))
        error = error_of(got)
        assert (got.status, error["code"], error["fault"]) == (404, "model_not_found", "caller")
        assert "'nobody'" in error["message"] and "served are gpt-4, llama, qwen" in error["message"]
        assert [replica.requests for replica in replicas] == [[], []]
        async with poise.openai() as client:
            with pytest.raises(openai.NotFoundError, match="nobody"):
                await client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "x"}])


async def test_the_message_is_bounded() -> None:
    async with serving(" ".join(f"model-{number:03}" for number in range(200))) as (poise, _):
        message = error_of(await poise.ask(chat("x" * 10_000)))["message"]
        assert "model-019 and 180 more" in message and "model-020" not in message
        assert len(message) < 500


async def test_while_a_list_is_not_known_that_replica_alone_is_asked() -> None:
    async with serving("a", None) as (poise, (a, unknown)):
        assert (await poise.ask(chat("b"))).status == 200
        assert (models_seen(a), models_seen(unknown)) == ([], ["b"])


async def test_a_model_whose_only_replica_drains_is_not_unknown() -> None:
    async with serving("a", "b") as (poise, (a, _)):
        poise.fleet.drain("r1")
        got = await poise.ask(chat("a"))
        assert (got.status, error_of(got)["code"], a.requests) == (503, "no_replica", [])
        poise.fleet.leave("r1")
        assert (await poise.ask(chat("a"))).status == 404


async def test_an_alias_that_nobody_serves_now_is_not_the_callers_fault() -> None:
    async with serving("a", names=ModelNames({"gpt-4": [("gone", 1)]}, {})) as (poise, (a,)):
        got = await poise.ask(chat("gpt-4"))
        assert (got.status, got.value("retry-after"), error_of(got)["fault"]) == (503, b"1", "gateway")
        assert a.requests == []


# -- fallbacks

FALLBACK = ModelNames({"gpt-4": [("a", 1)]}, {"a": ["b", "c"]})


@pytest.mark.parametrize("asked", ["a", "gpt-4"])
async def test_where_no_replica_is_available_another_model_answers(asked: str) -> None:
    async with serving("a", "b", names=FALLBACK) as (poise, (_, b)):
        first = poise.fleet.named("r1")
        assert first is not None
        first.available = False
        got = await poise.ask(chat(asked))
        assert (got.status, models_seen(b)) == (200, ["b"])
        assert got.value("x-poise-reason") == b"in order, fallback to b"
        assert [(line.model, line.asked_model) for line in poise.log.lines] == [("b", asked)]
        assert poise.counters.fallbacks == {("a", "b"): 1}


async def test_a_model_that_nobody_serves_now_falls_back() -> None:
    async with serving("c", names=FALLBACK) as (poise, (c,)):
        assert (await poise.ask(chat("a"))).status == 200
        assert models_seen(c) == ["c"]


async def test_nothing_falls_back_once_output_has_been_passed_on() -> None:
    scripts = {"a": streams(*CHAT.events[:2], then=lambda exchange: exchange.reset())}
    async with serving("a", "b", scripts=scripts, names=FALLBACK) as (poise, (_, b)):
        got = await poise.ask(chat("a", stream=True))
        assert b'"error"' in got.body and b.requests == []


async def test_an_error_of_the_callers_does_not_fall_back() -> None:
    async with serving("a", "b", scripts={"a": answers_error(400)}, names=FALLBACK) as (poise, (_, b)):
        assert (await poise.ask(chat("a"))).status == 400
        assert b.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refuses", [resets, answers_error(503), streams(CHAT.error_event(503))])
async def test_when_all_have_refused_another_model_answers(refuses: Script, stream: bool) -> None:
    scripts = {"a": refuses, "b": refuses, "c": streams() if stream else answers()}
    async with serving("a", "a", "a", "b", "c", scripts=scripts, names=FALLBACK) as (poise, replicas):
        got = await poise.ask(chat("gpt-4", stream=stream))
        assert got.status == 200
        assert [models_seen(replica) for replica in replicas] == [["a"], ["a"], [], ["b"], ["c"]]
        assert got.value("x-poise-replica") == b"r5"


async def test_when_the_others_refuse_too_the_last_answer_is_passed_on() -> None:
    scripts = {"a": answers_error(503), "b": answers_error(500, "the last word")}
    async with serving("a", "b", scripts=scripts, names=FALLBACK) as (poise, _):
        got = await poise.ask(chat("a"))
        assert got.status == 500 and error_of(got)["message"] == "the last word"


async def test_a_caller_that_leaves_during_a_fallback_is_seen_by_its_replica() -> None:
    async with serving("a", "b", scripts={"a": resets, "b": hangs}, names=FALLBACK) as (poise, (_, b)):
        caller = await poise.client()
        await caller.send(chat("a"))
        seen = await b.request()
        caller.close()
        await seen.wire.wait_closed()
