"""The model list comes from memory: replicas that are down or hang neither break nor delay it."""

import asyncio
import json
from contextlib import closing
from typing import Any

from poise.app.gateway import Gateway
from poise.config.load import load_config
from support.http_bytes import answer, to_json
from support.scripted_replica import Exchange, Script, ScriptedReplica, closed_port
from support.scripts import hangs


def lists(*names: str) -> Script:
    """A script that answers with a model list."""
    page = to_json({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "x"} for name in names]})

    async def script(exchange: Exchange) -> None:
        await exchange.write(answer(200, page) if exchange.target == b"/v1/models" else answer(404, b"{}"))

    return script


async def models(port: int) -> tuple[int, Any, float]:
    """Status and JSON of `GET /v1/models`, and how long it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body), loop.time() - began_s


def gateway(*ports: int) -> Gateway:
    given = {
        "host": "127.0.0.1", "port": 0, "admin.port": 0, "telemetry.models_interval_s": 0.05,
        "telemetry.models_timeout_s": 0.2, "replicas": [f"http://127.0.0.1:{port}" for port in ports],
    }  # fmt: skip
    return Gateway(load_config(None, {}, given).settings)


async def ids_once(poise: Gateway, wanted: list[str] | None) -> None:
    """Come back when the list is `wanted`, None for none; every answer on the way is quick and right in form."""
    async with asyncio.timeout(10):
        while True:
            status, page, seconds = await models(poise.port)
            assert seconds < 1
            assert status == 200 or (status, bool(page["error"]["message"])) == (503, True)
            found = [entry["id"] for entry in page["data"]] if status == 200 else None
            if found == wanted:
                return
            await asyncio.sleep(0.02)


async def test_with_one_that_refuses_and_one_that_hangs() -> None:
    with closing(closed_port()) as nobody:
        async with ScriptedReplica(lists("b", "a")) as up, ScriptedReplica(hangs) as hung:
            async with gateway(nobody.getsockname()[1], hung.port, up.port) as poise:
                await ids_once(poise, ["b", "a"])


async def test_a_model_that_two_serve_is_listed_once_and_the_order_stays() -> None:
    async with ScriptedReplica(lists("m", "z")) as one, ScriptedReplica(lists("m", "c")) as two:
        async with gateway(one.port, two.port) as poise:
            await ids_once(poise, ["m", "z", "c"])
            for _ in range(5):
                assert [entry["id"] for entry in (await models(poise.port))[1]["data"]] == ["m", "z", "c"]


async def test_with_all_of_them_down_it_says_so() -> None:
    async with ScriptedReplica(lists("m")) as one:
        async with gateway(one.port) as poise:
            await ids_once(poise, ["m"])
            await one.die()
            await ids_once(poise, None)
