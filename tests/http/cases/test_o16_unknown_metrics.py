"""An engine whose metrics are renamed, missing or late is not taken for an idle one, nor for a full one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from poise.admin.metrics import metrics_page
from poise.app.gateway import Gateway
from poise.config.load import load_config
from poise.core.clock import monotonic_s
from support.apis import CHAT
from support.http_bytes import answer, request
from support.raw_client import client
from support.scripted_replica import Exchange, Script, ScriptedReplica
from support.scripts import writes
from support.wire import until

REQUEST_S = 0.1
INTERVAL_S = 0.1
REQUESTS, AT_ONCE = 60, 10
ASK = request(body=CHAT.request_body(stream=False))


def engine(metrics: Script) -> Script:
    """A healthy engine with these metrics, which takes a while for each request."""

    async def script(exchange: Exchange) -> None:
        if exchange.target == b"/metrics":
            await metrics(exchange)
        elif exchange.target == b"/v1/chat/completions":
            await asyncio.sleep(REQUEST_S)
            await exchange.write(answer(200, json.dumps(CHAT.plain).encode()))
        else:
            await exchange.write(answer(200, b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'))

    return script


def page(**gauges: float) -> Script:
    """A metrics page with these of vLLM's gauges alone."""
    lines = [f'vllm:{name}{{engine="0",model_name="m"}} {value}\n' for name, value in gauges.items()]
    return writes(answer(200, "".join(lines).encode()))


def silent_after(*scripts: Script) -> Script:
    """Each script in turn, and then a page that does not come within any limit."""
    left = iter(scripts)

    async def script(exchange: Exchange) -> None:
        await next(left, Exchange.hang)(exchange)

    return script


FULL = engine(page(kv_cache_usage_perc=0.84, num_requests_waiting=40, num_requests_running=10))
IDLE = engine(page(gpu_cache_usage_perc=0.1, num_requests_waiting=0, num_requests_running=0))


def unknown() -> Script:
    """An engine whose page is absent, then another's, then late for ever."""
    return engine(silent_after(writes(answer(404, b"not found")), writes(answer(200, b"<html>hello</html>\n"))))


@asynccontextmanager
async def serving(*replicas: ScriptedReplica) -> AsyncIterator[Gateway]:
    """A whole gateway that places by load."""
    overrides = {
        "host": "127.0.0.1", "port": 0, "admin.port": 0, "policy.name": "load_score",
        "telemetry.interval_s": INTERVAL_S, "telemetry.timeout_s": 0.08,
        "replicas": [f"http://127.0.0.1:{replica.port}" for replica in replicas],
    }  # fmt: skip
    async with Gateway(load_config(None, {}, overrides).settings) as gateway:
        yield gateway


async def ask_all(gateway: Gateway) -> list[int]:
    """Statuses of all requests, some at a time."""
    statuses: list[int] = []

    async def one_after_another(count: int) -> None:
        async with client(gateway.port) as caller:
            for _ in range(count):
                statuses.append((await caller.ask(ASK)).status)

    await asyncio.gather(*(one_after_another(REQUESTS // AT_ONCE) for _ in range(AT_ONCE)))
    return statuses


def served(replica: ScriptedReplica) -> int:
    """Requests for answers that a replica got."""
    return sum(exchange.target == b"/v1/chat/completions" for exchange in replica.requests)


def scrape_times(replica: ScriptedReplica) -> list[float]:
    """When a replica's metrics were asked for."""
    return [exchange.arrived_at_s for exchange in replica.requests if exchange.target == b"/metrics"]


def usable(gateway: Gateway) -> dict[str, float]:
    """The gauge of each replica, as Prometheus reads it."""
    text = metrics_page(gateway._sources, monotonic_s()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {s.labels["replica"]: s.value for s in families["poise_replica_metrics_usable"].samples}


async def test_renamed_gauges_are_one_quantity_and_an_unknown_load_is_not_idle() -> None:
    with capture_logs() as logs:
        async with (
            ScriptedReplica(FULL) as full,
            ScriptedReplica(IDLE) as idle,
            ScriptedReplica(unknown()) as strange,
            serving(full, idle, strange) as gateway,
        ):
            await until(lambda: usable(gateway) == {"r1": 1, "r2": 1, "r3": 0}, "the metrics to be read")
            assert await ask_all(gateway) == [200] * REQUESTS
            assert served(full) <= served(strange) <= served(idle)
            assert served(full) < served(idle)
            await until(lambda: len(scrape_times(strange)) >= 3, "the late page")
            before = len(scrape_times(idle))
            await until(lambda: len(scrape_times(idle)) >= before + 5, "further scrapes", within_s=20 * INTERVAL_S)
            assert usable(gateway) == {"r1": 1, "r2": 1, "r3": 0}
    warnings = [line for line in logs if line["log_level"] == "warning" and line.get("replica") == "r3"]
    assert len(warnings) == 1, "one for each change, however often it is seen"


async def test_a_pool_whose_load_is_unknown_serves_at_once() -> None:
    async with ScriptedReplica(unknown()) as strange, serving(strange) as gateway, client(gateway.port) as caller:
        assert (await caller.ask(ASK, within_s=2.0)).status == 200
        assert usable(gateway) == {"r1": 0}
