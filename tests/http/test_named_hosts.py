"""Replicas that are named rather than addressed: their connections and their number follow what the name stands for."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from poise.app.gateway import Gateway
from poise.bench.client import TimedAnswer, stream_chat
from poise.config.load import load_config
from poise.engine.settings import EngineSettings
from poise.engine.simulated_engines import SimulatedEngines
from support.wire import until

DEADLINE_S = 15.0


def engine(host: str, port: int = 0) -> SimulatedEngines:
    return SimulatedEngines(EngineSettings(host=host, port=port, count=1, speed=2.0))


class NameServer:
    """What `engine.test` stands for; None for a name server that is not there."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] | None = addresses
        self.asked = 0

    async def __call__(self, name: str) -> Sequence[str]:
        assert name == "engine.test"
        self.asked += 1
        if self.addresses is None:
            raise OSError("no name server")
        return self.addresses


@asynccontextmanager
async def gateway(server: NameServer, port: int, **replica: object) -> AsyncIterator[Gateway]:
    overrides = {
        "host": "127.0.0.1", "port": 0, "admin.port": 0, "telemetry.interval_s": 0.05, "policy.name": "round_robin",
        "membership.check_interval_s": 0.02, "membership.dns_interval_s": 0.02,
        "replicas": [{"url": f"http://engine.test:{port}", "name": "v", **replica}],
    }  # fmt: skip
    async with Gateway(load_config(None, {}, overrides).settings, resolve=server) as running:
        yield running


async def ask(port: int, tokens: int = 4) -> TimedAnswer:
    body = {"model": "poise-sim", "messages": [{"role": "user", "content": "Hello"}]}
    return await stream_chat("127.0.0.1", port, body | {"max_tokens": tokens, "ignore_eos": True}, timeout_s=DEADLINE_S)


async def test_new_connections_go_where_the_name_leads_now() -> None:
    server = NameServer("127.0.0.1")
    async with engine("127.0.0.1") as old, engine("127.0.0.2", old.ports[0]):
        async with gateway(server, old.ports[0]) as poise:
            stream = asyncio.get_running_loop().create_task(ask(poise.port, tokens=60))
            await until(lambda: poise.data_path.counters.in_flight == 1, "the stream to begin")
            assert (await ask(poise.port)).error is None
            server.addresses = ["127.0.0.2"]
            (replica,) = poise.fleet
            await until(lambda: replica.hosts == ("127.0.0.2",), "the new address")
            connections = poise.data_path.connections(replica)
            await until(lambda: not connections._idle, "the idle one to the old address to end", within_s=2)
            assert [(await ask(poise.port)).error for _ in range(3)] == [None] * 3
            assert {connection.host for connection in connections._idle} == {"127.0.0.2"}
            assert ((await stream).error, (await stream).output_tokens) == (None, 60), "it may end where it began"
            await old.close()
            replica.reading = None
            await until(lambda: replica.reading is not None, "the metrics of the new address")
            assert list(poise.fleet) == [replica]


async def test_an_address_that_does_not_answer_is_passed_over() -> None:
    async with engine("127.0.0.1") as only:
        async with gateway(NameServer("127.0.0.3", "::1", "127.0.0.1"), only.ports[0]) as poise:
            assert [(await ask(poise.port)).error for _ in range(3)] == [None] * 3


async def test_a_replica_for_each_address_comes_and_goes_with_it() -> None:
    server = NameServer("127.0.0.1")
    async with engine("127.0.0.1") as first, engine("127.0.0.2", first.ports[0]):
        async with gateway(server, first.ports[0], each_address=True) as poise:
            assert [replica.name for replica in poise.fleet] == ["v-127.0.0.1"], "known before callers are let in"
            stream = asyncio.get_running_loop().create_task(ask(poise.port, tokens=60))
            await until(lambda: poise.data_path.counters.in_flight == 1, "the stream to begin")
            server.addresses = ["127.0.0.2", "127.0.0.1"]
            await until(lambda: len(poise.fleet) == 2, "the second replica")
            answers = [await ask(poise.port) for _ in range(4)]
            assert {answer.headers["x-poise-replica"] for answer in answers} == {"v-127.0.0.1", "v-127.0.0.2"}
            server.addresses = ["127.0.0.2"]
            await until(lambda: len(poise.fleet) == 1, "the first to leave")
            assert {(await ask(poise.port)).headers["x-poise-replica"] for _ in range(3)} == {"v-127.0.0.2"}
            assert ((await stream).error, (await stream).output_tokens) == (None, 60)
            server.addresses, asked = None, server.asked
            await until(lambda: server.asked > asked + 2, "some looks that fail")
            assert [replica.name for replica in poise.fleet] == ["v-127.0.0.2"]
            assert (await ask(poise.port)).error is None
