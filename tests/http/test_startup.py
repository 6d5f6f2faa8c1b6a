"""Which replicas are waited for before the data port is opened, and what is said of those that are not there."""

import asyncio
import signal

import pytest

from poise.app.gateway import Gateway
from poise.config.load import load_config
from poise.engine.settings import EngineSettings
from poise.engine.simulated_engines import SimulatedEngines
from support.http_bytes import request
from support.raw_client import client
from support.scripted_replica import Exchange, ScriptedReplica, closed_port
from support.scripts import answers
from support.serve_command import data_port, lines_until, serve_command
from support.wire import DEADLINE_S, until

READY = request("/ready", method="GET")


async def engine(port: int = 0) -> SimulatedEngines:
    engines = SimulatedEngines(EngineSettings(port=port, count=1, speed=20.0))
    await engines.start()
    return engines


@pytest.mark.parametrize("wanted", ["any", "all"])
async def test_the_port_is_opened_once_enough_replicas_have_answered(wanted: str) -> None:
    running, sock = await engine(), closed_port()
    port = sock.getsockname()[1]
    flags = ("--replica", running.urls[0], "--replica", f"http://127.0.0.1:{port}")
    late = None
    try:
        start = "waits up to 600 s" if wanted == "all" else "try: "
        async with serve_command(*flags, "--set", f"startup.wait_for_replicas={wanted}", until=start) as (
            process,
            said,
        ):
            if wanted == "all":
                assert said[-1] == "waits up to 600 s for every replica to answer; not there yet: r2"
                sock.close()
                late = await engine(port)
                said = await lines_until(process, "try: ")
                assert any(line.startswith("every replica answered after ") for line in said)
            else:
                assert any(line.startswith("a replica answered after ") for line in said)
                assert any(line.startswith("has not heard of r2 yet") for line in said)
            assert data_port(said)
    finally:
        sock.close()
        await running.close()
        if late is not None:
            await late.close()


async def test_without_a_wish_nothing_is_waited_for_and_what_is_missing_is_said_once() -> None:
    with closed_port() as sock:
        async with serve_command("--replica", f"http://127.0.0.1:{sock.getsockname()[1]}") as (_, said):
            assert [line for line in said if "r1" in line and "has not heard" in line] == [
                "has not heard of r1 yet, and does not wait (startup.wait_for_replicas)"
            ]
            assert data_port(said)


async def test_when_time_is_up_it_opens_all_the_same() -> None:
    with closed_port() as sock:
        flags = ("--set", "startup.wait_for_replicas=any", "--set", "startup.timeout_s=1.2")
        async with serve_command("--replica", f"http://127.0.0.1:{sock.getsockname()[1]}", *flags) as (_, said):
            assert "opens without having heard of r1 for 1.2 s" in said
            assert data_port(said)


async def test_a_signal_ends_the_wait() -> None:
    with closed_port() as sock:
        flags = ("--replica", f"http://127.0.0.1:{sock.getsockname()[1]}", "--set", "startup.wait_for_replicas=any")
        async with serve_command(*flags, until="waits up to ") as (process, _):
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(DEADLINE_S):
                assert await process.wait() == 0


async def test_it_is_ready_once_a_replica_has_been_heard_of() -> None:
    gate = asyncio.Event()

    async def silent_at_first(exchange: Exchange) -> None:
        await gate.wait()
        await answers(200)(exchange)

    async with ScriptedReplica(silent_at_first) as replica:
        flags = {"replicas": [f"http://127.0.0.1:{replica.port}"], "health.interval_s": 0.1, "health.timeout_s": 0.1}
        settings = load_config(None, {}, {"host": "127.0.0.1", "port": 0, "admin.port": 0, **flags}).settings
        async with Gateway(settings) as gateway:
            await asyncio.sleep(0.5)
            async with client(gateway.port) as caller:
                assert (await caller.ask(READY)).status == 503, "it listens, and says nothing"
                gate.set()
                await until(lambda: gateway.data_path.is_ready, "the first answer")
                assert (await caller.ask(READY)).status == 200
