"""A replica that vanishes while nobody hears of it costs no request, and is gone soon after it can be known."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from poise.app.gateway import Gateway
from poise.bench.client import TimedAnswer, stream_chat
from poise.config.load import ConfigInputs
from poise.engine.settings import EngineSettings
from poise.engine.simulated_engines import SimulatedEngines
from support.wire import until

DEADLINE_S = 15.0
SILENT = "192.0.2.1"
"""An address of the documentation's network: what is sent there is answered by nobody."""


def engine(model: str, host: str = "127.0.0.1", port: int = 0) -> SimulatedEngines:
    return SimulatedEngines(EngineSettings(host=host, port=port, count=1, speed=20.0, model=model))


async def ask(port: int, session: str) -> TimedAnswer:
    body = {"model": "both", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "user": session}
    return await stream_chat("127.0.0.1", port, body, timeout_s=DEADLINE_S)


def inputs_for(path: Path, replicas: Sequence[dict[str, Any]]) -> ConfigInputs:
    path.write_text(json.dumps({"replicas": replicas}))
    settings = {
        "host": "127.0.0.1", "port": 0, "admin.port": 0, "telemetry.interval_s": 0.1, "timeouts.connect_s": 0.3,
        "membership.check_interval_s": 0.05, "membership.dns_interval_s": 0.05, "retry.budget_floor": 1000,
    }  # fmt: skip
    return ConfigInputs(str(path), {}, settings)


@pytest.mark.parametrize("source", ["file", "dns"])
async def test_no_request_is_lost_and_the_vanished_one_is_forgotten(source: str, tmp_path: Path) -> None:
    path = tmp_path / "poise.yaml"
    answers: list[str] | None = ["127.0.0.1", "127.0.0.2"]

    async def resolve(name: str) -> Sequence[str]:
        if answers is None:
            raise OSError("no name server")
        return answers

    async with engine("both") as first:
        port = first.ports[0]
        async with engine("both", "127.0.0.2", port) as second:
            if source == "file":
                both = [{"url": f"http://127.0.0.{n}:{port}", "name": f"e{n}"} for n in (1, 2)]
            else:
                both = [{"url": f"http://engine.test:{port}", "name": "e", "each_address": True}]
            inputs = inputs_for(path, both)
            async with Gateway(inputs.load().settings, inputs=inputs, resolve=resolve) as poise:
                names = {replica.name for replica in poise.fleet}
                assert len(names) == 2
                sessions = [f"user-{number}" for number in range(12)]
                before = [(await ask(poise.port, session)).headers["x-poise-replica"] for session in sessions]
                assert set(before) == names, "each is some session's home"
                # The feed is cut, and the second replica goes.
                if source == "file":
                    path.write_text("replicas: [")
                else:
                    answers = None
                await second.close()
                assert {(await ask(poise.port, session)).error for session in sessions} == {None}
                assert {replica.name for replica in poise.fleet} == names, "nobody has said that it is gone"
                # The feed is back.
                if source == "file":
                    path.write_text(json.dumps({"replicas": both[:1]}))
                else:
                    answers = ["127.0.0.1"]
                await until(lambda: len(list(poise.fleet)) == 1, "the vanished one to be forgotten", within_s=2)
                (left,) = poise.fleet
                after = [await ask(poise.port, session) for session in sessions]
                assert {(answer.error, answer.headers["x-poise-replica"]) for answer in after} == {(None, left.name)}
                assert poise.data_path.is_ready


async def test_an_address_that_swallows_packets_costs_the_connect_limit_once(tmp_path: Path) -> None:
    async with engine("both") as first:
        replicas = [
            {"url": first.urls[0], "name": "e1"},
            {"url": f"http://{SILENT}:8000", "name": "e2", "model": "both"},
        ]
        inputs = inputs_for(tmp_path / "poise.yaml", replicas)
        async with Gateway(inputs.load().settings, inputs=inputs) as poise:
            loop = asyncio.get_running_loop()
            for number in range(8):
                began_s = loop.time()
                answer = await ask(poise.port, f"user-{number}")
                assert (answer.error, answer.headers["x-poise-replica"]) == (None, "e1")
                assert loop.time() - began_s < 5
