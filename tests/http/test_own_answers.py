"""What the gateway answers itself: health, models, methods, and what browsers ask."""

import json

import pytest

from poise.proxy.settings import Cors
from support.apis import CHAT
from support.gateway import gateway, short_settings
from support.http_bytes import head, request
from support.refusals import error_of
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers

BODY = CHAT.request_body(stream=False)


# -- what the gateway answers itself


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/nope"])
async def test_head_is_get_without_the_body(path: str) -> None:
    class Models:
        def page(self) -> bytes:
            return b'{"object":"list","data":[]}'

        def entry(self, name: str) -> bytes | None:
            return None

    async with ScriptedReplica(answers()) as replica, gateway(replica, models=Models()) as poise:
        caller = await poise.client()
        got = await caller.ask(request(path, None, method="GET"))
        without = await caller.ask(request(path, None, method="HEAD"))
        assert without.status == got.status
        assert without.value("content-length") == str(len(got.body)).encode()
        again = await caller.ask(request("/health", None, method="GET"))
        assert again.status == 200 and json.loads(again.body)
        assert replica.requests == []


async def test_health_and_readiness() -> None:
    async with gateway() as poise:
        assert (await poise.ask(request("/health", None, method="GET"))).status == 200
        got = await poise.ask(request("/ready", None, method="GET"))
        assert got.status == 503
        assert error_of(got)["message"]
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        assert (await poise.ask(request("/ready", None, method="GET"))).status == 200
        only = poise.fleet.named("r1")
        assert only is not None
        only.available = False
        assert (await poise.ask(request("/ready", None, method="GET"))).status == 503
        assert replica.requests == []


async def test_the_model_list_comes_from_memory() -> None:
    entries = {"m": b'{"id":"m","object":"model"}', "org/n": b'{"id":"org/n","object":"model"}'}

    class Models:
        def page(self) -> bytes:
            return b'{"object":"list","data":[%b]}' % b",".join(entries.values())

        def entry(self, name: str) -> bytes | None:
            return entries.get(name)

    async with ScriptedReplica(answers()) as replica, gateway(replica, models=Models()) as poise:
        got = await poise.ask(request("/v1/models", None, method="GET"))
        assert [model["id"] for model in json.loads(got.body)["data"]] == ["m", "org/n"]
        for path in ("/v1/models/m", "/v1/models/org%2Fn", "/v1/models/org/n"):
            assert (await poise.ask(request(path, None, method="GET"))).status == 200
        got = await poise.ask(request("/v1/models/absent", None, method="GET"))
        assert got.status == 404 and error_of(got)["code"] == "model_not_found"
        assert replica.requests == []


async def test_the_model_list_before_any_replica_has_answered_is_503() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        got = await poise.ask(request("/v1/models", None, method="GET"))
        assert got.status == 503 and error_of(got)["message"]
        assert replica.requests == []


# -- browsers

PAGE = "https://page.test"
ALLOWED = short_settings(cors=Cors(allow_origins=(PAGE,)))


def preflight(origin: str, target: str = "/v1/chat/completions") -> bytes:
    """What a browser asks before it sends a POST from a page."""
    asked = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization")]
    return request(target, None, method="OPTIONS", headers=[("Origin", origin), *asked])


async def test_preflight_from_an_allowed_origin() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica, settings=ALLOWED) as poise:
        caller = await poise.client()
        for _ in range(2):
            got = await caller.ask(preflight(PAGE))
            assert got.status in (200, 204) and got.complete
            assert got.value("access-control-allow-origin") == PAGE.encode()
            assert b"POST" in (got.value("access-control-allow-methods") or b"")
            assert got.value("access-control-allow-headers")
        assert replica.requests == []


@pytest.mark.parametrize("origins", [(), (PAGE,)])
@pytest.mark.parametrize("origin", ["https://other.test", "null", "https://page.test.evil.test", "http://page.test"])
async def test_preflight_from_elsewhere_is_refused(origins: tuple[str, ...], origin: str) -> None:
    async with ScriptedReplica(answers()) as replica:
        async with gateway(replica, settings=short_settings(cors=Cors(allow_origins=origins))) as poise:
            got = await poise.ask(preflight(origin))
            assert 400 <= got.status < 500
            assert got.value("access-control-allow-origin") is None
            assert replica.requests == []


async def test_answers_and_errors_can_be_read_by_the_page_and_say_so_once() -> None:
    async def script(exchange: Exchange) -> None:
        own = [("Access-Control-Allow-Origin", "*"), ("Content-Length", "2"), ("Content-Type", "application/json")]
        await exchange.write(head("HTTP/1.1 200 OK", own) + b"{}")

    async with ScriptedReplica(script) as replica, gateway(replica, settings=ALLOWED) as poise:
        for sent, status in (
            (request(body=BODY, headers=[("Origin", PAGE)]), 200),
            (request("/nope", None, method="GET", headers=[("Origin", PAGE)]), 404),
        ):
            got = await poise.ask(sent)
            assert got.status == status
            assert got.value("access-control-allow-origin") == PAGE.encode()
        got = await poise.ask(request(body=BODY, headers=[("Origin", "https://other.test")]))
        assert got.value("access-control-allow-origin") != b"https://other.test"


async def test_options_without_an_origin_lists_the_methods() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        got = await poise.ask(request("/v1/chat/completions", None, method="OPTIONS"))
        assert got.status in (200, 204) and b"POST" in (got.value("allow") or b"")
        assert replica.requests == []
