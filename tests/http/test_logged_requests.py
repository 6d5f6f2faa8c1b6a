"""The request log and traces of a whole gateway: what its disk and collector do is no caller's business."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from poise.admin.metrics import metrics_page
from poise.app.gateway import Gateway
from poise.config.load import load_config
from support.apis import CHAT
from support.collector import collector
from support.http_bytes import request
from support.raw_client import client
from support.scripted_replica import ScriptedReplica
from support.scripts import answers, engine
from support.wire import until

ASK = request(body=CHAT.request_body(stream=False))


@asynccontextmanager
async def serving(replica: ScriptedReplica, **settings: Any) -> AsyncIterator[Gateway]:
    """A whole gateway over one replica; a name's underscore stands for a dot."""
    overrides = {"host": "127.0.0.1", "port": 0, "admin.port": 0, "replicas": [f"http://127.0.0.1:{replica.port}"]}
    overrides |= {name.replace("_", ".", 1): value for name, value in settings.items()}
    async with Gateway(load_config(None, {}, overrides).settings) as gateway:
        yield gateway


def shown(gateway: Gateway, metric: str) -> float:
    """A metric without labels."""
    lines = metrics_page(gateway._sources, 0.0).decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{metric} ")]
    return float(line.split()[1])


async def ask(gateway: Gateway, count: int) -> None:
    """Ask so often, on one connection; every answer must be a good one."""
    async with client(gateway.port) as caller:
        for _ in range(count):
            assert (await caller.ask(ASK)).status == 200


async def test_a_full_disk_costs_lines_and_no_request() -> None:
    async with ScriptedReplica(engine(answers())) as replica, serving(replica, log_requests="/dev/full") as gateway:
        await ask(gateway, 30)
        await until(lambda: shown(gateway, "poise_log_lines_lost_total") == 30, "the lines to be counted as lost")
        await ask(gateway, 5)
        await until(lambda: shown(gateway, "poise_log_lines_lost_total") == 35, "further lines to be lost")


async def test_rotation_loses_no_line_whether_it_is_announced_or_not(tmp_path: Path) -> None:
    path, files = tmp_path / "requests", [tmp_path / "requests.1", tmp_path / "requests.2", tmp_path / "requests"]
    async with ScriptedReplica(engine(answers())) as replica, serving(replica, log_requests=str(path)) as gateway:
        for number, moved in enumerate(files):
            await ask(gateway, 10)
            if moved != path:
                path.rename(moved)
            if number == 0:
                gateway.reload()  # as SIGHUP does
    lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    assert len(lines) == len({line["request_id"] for line in lines}) == 30
    assert {(line["outcome"], line["replica"], line["model"], line["prompt_tokens"]) for line in lines} == {
        ("completed", "r1", "m", 11)
    }
    assert all(0 <= line["queue_s"] <= line["first_output_s"] <= line["duration_s"] for line in lines)


async def test_names_without_end_do_not_reach_the_log(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    async with ScriptedReplica(engine(answers())) as replica, serving(replica, log_requests=str(path)) as gateway:
        async with client(gateway.port) as caller:
            huge = request(body=CHAT.request_body(stream=False, model="m" * 1_000_000, user="u" * 100_000))
            assert (await caller.ask(huge)).status in (200, 404)
    assert path.stat().st_size < 2000


async def test_traces_are_configured_delivered_and_counted() -> None:
    async with (
        ScriptedReplica(engine(answers())) as replica,
        collector() as got,
        serving(replica, tracing_endpoint=got.url, tracing_service_name="gate") as gateway,
    ):
        await ask(gateway, 2)
        await until(lambda: len(got.spans) == 4, "the spans")
        assert got.resource["service.name"] == "gate"
        assert shown(gateway, "poise_traces_lost_total") == 0
