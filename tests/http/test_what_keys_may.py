"""What each API key may do, over real sockets: models, rates, tokens, concurrency, and a file that changes."""

import asyncio
import json
from pathlib import Path

import pytest

from poise.admission.api_key import ApiKey
from poise.admission.keys_file import parse_keys
from poise.app.gateway import Gateway as WholeGateway
from poise.config.settings import Settings
from support.apis import CHAT
from support.gates import Gate, bearer, ring
from support.gateway import gateway
from support.http_bytes import request
from support.raw_client import open_client
from support.refusals import error_of
from support.scripted_replica import ScriptedReplica
from support.scripts import answers, answers_error
from support.wire import until


def asked(key: str, model: str | None = "m", target: str = CHAT.path, **more: object) -> bytes:
    body = json.loads(CHAT.request_body(stream=False, **more))
    body["model"] = model
    return request(target, json.dumps({name: value for name, value in body.items() if value is not None}).encode(),
                   headers=bearer(key))  # fmt: skip


async def test_a_key_may_use_its_models_and_learns_nothing_of_others() -> None:
    keys = ring(ApiKey("some", models=("m", "n")), ApiKey("all"))
    async with ScriptedReplica(answers()) as replica, gateway(replica, keys=keys) as poise:
        assert (await poise.ask(asked("some", "m"))).status == 200
        assert (await poise.ask(asked("all", "anything"))).status == 200
        for refused in (
            asked("some", "o"), asked("some", "*"), asked("some", None),
            request("/v1/audio/transcriptions", b"no form", headers=bearer("some")),
            request(body=b"\x1f\x8b", headers=[*bearer("some"), ("Content-Encoding", "gzip")]),
        ):  # fmt: skip
            got = await poise.ask(refused)
            assert (got.status, error_of(got)["code"]) == (404, "model_not_found")
        stored = request("/v1/responses/resp_1", None, method="GET", headers=bearer("some"))
        assert (await poise.ask(stored)).status == 200
        assert len(replica.requests) == 3


async def test_requests_per_second_and_when_to_come_back() -> None:
    async with (
        ScriptedReplica(answers()) as replica,
        gateway(replica, keys=ring(ApiKey("a", requests_per_s=2))) as poise,
    ):
        statuses = [(await poise.ask(asked("a"))).status for _ in range(2)]
        got = await poise.ask(asked("a"))
        assert statuses == [200, 200]
        assert (got.status, error_of(got)["code"], got.value("retry-after")) == (429, "key_requests", b"1")
        assert error_of(got)["fault"] == "caller"
        await asyncio.sleep(1.0)
        assert (await poise.ask(asked("a"))).status == 200
        assert poise.counters.refusals == {"key_requests": 1}
        (use,) = poise.data_path.key_limits.all()
        assert (use.requests, use.refusals, use.prompt_tokens, use.output_tokens) == (3, {"key_requests": 1}, 33, 21)


async def test_tokens_per_minute_are_what_usage_says() -> None:
    keys = ring(ApiKey("a", tokens_per_min=100))
    async with ScriptedReplica(answers()) as replica, gateway(replica, keys=keys) as poise:
        for _ in range(2):  # an estimate of 64 each, of which 18 are used
            assert (await poise.ask(asked("a"))).status == 200
        got = await poise.ask(asked("a", max_tokens=90))
        assert (got.status, error_of(got)["code"]) == (429, "key_tokens")
        assert 10 <= int(got.value("retry-after") or b"0") <= 16, "26 of 90 tokens are missing, at 100 a minute"


async def test_requests_that_reach_no_replica_cost_no_tokens() -> None:
    keys = ring(ApiKey("a", tokens_per_min=100))
    async with ScriptedReplica(answers_error(400)) as replica, gateway(replica, keys=keys) as poise:
        poise.fleet.drain("r1")
        for _ in range(5):
            assert (await poise.ask(asked("a"))).status == 503
        poise.fleet.resume("r1")
        assert (await poise.ask(asked("a"))).status == 400
        assert len(replica.requests) == 1


async def test_concurrency_counts_waiting_requests_and_those_whose_caller_left() -> None:
    gate = Gate()
    keys = ring(ApiKey("a", max_concurrency=2), ApiKey("b"))
    async with ScriptedReplica(gate) as replica, gateway(replica, caps=1, keys=keys) as poise:
        callers = [await poise.client() for _ in range(2)]
        for caller in callers:
            await caller.send(asked("a"))
        await until(lambda: poise.data_path.waiting.queue.length == 1, "the second to wait")
        got = await poise.ask(asked("a"))
        assert (got.status, error_of(got)["code"]) == (429, "key_concurrency")
        callers[1].wire.transport.abort()
        await until(lambda: poise.data_path.waiting.queue.length == 0, "the caller to be forgotten")
        again = await poise.client()
        await again.send(asked("a"))
        await until(lambda: poise.data_path.waiting.queue.length == 1, "another to wait")
        gate.open()
        assert (await callers[0].answer()).status == (await again.answer()).status == 200
        assert (await poise.ask(asked("b"))).status == 200


async def test_a_caller_cannot_raise_itself_above_its_key() -> None:
    gate = Gate()
    keys = ring(ApiKey("low", priority=-5), ApiKey("high", priority=5))
    async with ScriptedReplica(gate) as replica, gateway(replica, caps=1, keys=keys) as poise:
        callers = []
        for number, (name, wanted) in enumerate([("low", "0"), ("low", "100"), ("high", None), ("high", "-50")]):
            headers = [*bearer(name), *([("X-Poise-Priority", wanted)] if wanted else [])]
            callers.append(await poise.client())
            await callers[-1].send(request(body=CHAT.request_body(stream=False, number=number), headers=headers))
            await until(lambda number=number: poise.counters.in_flight == number + 1, "the request to be taken up")
        gate.open()
        assert [(await caller.answer()).status for caller in callers] == [200] * 4
        assert [json.loads(body)["number"] for body in gate.order] == [0, 2, 1, 3]


def keys_text(*entries: dict[str, object]) -> str:
    return json.dumps({"keys": entries})


async def test_the_keys_file_is_followed_and_a_bad_one_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    first, second = {"name": "a", "key": "sk-a", "requests_per_s": 1}, {"name": "b", "key": "sk-b"}
    path.write_text(keys_text(first))
    async with ScriptedReplica(answers()) as replica:
        settings = Settings.model_validate(
            {
                "host": "127.0.0.1", "port": 0, "admin": {"port": 0}, "keys": {"file": str(path)},
                "replicas": [{"url": f"http://127.0.0.1:{replica.port}"}], "membership": {"check_interval_s": 0.05},
            }
        )  # fmt: skip
        async with WholeGateway(settings) as poise:

            async def status(key: str) -> int:
                client = await open_client(poise.port)
                try:
                    return (await client.ask(asked(key))).status
                finally:
                    client.wire.fin()

            keys = poise.data_path.keys
            assert keys is not None
            assert [await status(key) for key in ("a", "a", "b")] == [200, 429, 401]
            path.write_text(keys_text({**first, "requests_per_s": 0.01}, second))
            await until(lambda: len(keys) == 2, "the new keys")
            assert [await status(key) for key in ("a", "b")] == [429, 200], "what was used is not forgotten"
            path.write_text("keys: [{name: a, key: sk-secret")
            await until(lambda: "refused" in capfd.readouterr().out, "the bad file to be refused")
            assert [await status(key) for key in ("a", "b")] == [429, 200]
            path.write_text(keys_text(second))
            await until(lambda: len(keys) == 1, "the key to be taken away")
            assert [await status(key) for key in ("a", "b")] == [401, 200]
            assert [use.key.name for use in poise.data_path.key_limits.all()] == ["b"]
        assert "sk-secret" not in "".join(capfd.readouterr())


def test_the_ring_of_the_kit_is_as_the_file_makes_it() -> None:
    made = ring(ApiKey("a", priority=3))
    assert list(made) == list(parse_keys(keys_text({"name": "a", "key": "sk-a", "priority": 3})))
