"""The whole gateway in front of simulated engines: start, answers, admin port, signals, and what can be in the way."""

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from poise.app.errors import PortError, StartError
from poise.app.gateway import Gateway
from poise.bench.client import TimedAnswer, stream_chat
from poise.config.load import load_config
from poise.config.settings import Settings
from poise.core.errors import ConfigError
from poise.engine.settings import EngineSettings
from poise.engine.simulated_engines import SimulatedEngines
from support.serve_command import data_port, serve_command
from support.wire import until

DEADLINE_S = 15.0


def settings_for(urls: list[str], **overrides: Any) -> Settings:
    """Free ports on loopback, `overrides` on top with `__` for dots."""
    given = {"host": "127.0.0.1", "port": 0, "admin.port": 0, "replicas": urls, "telemetry.interval_s": 0.1}
    given |= {name.replace("__", "."): value for name, value in overrides.items()}
    return load_config(None, {}, given).settings


def engines(count: int = 2, speed: float = 20.0) -> SimulatedEngines:
    return SimulatedEngines(EngineSettings(port=0, count=count, speed=speed))


async def get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of one GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def ask(port: int, tokens: int = 4) -> TimedAnswer:
    body = {"model": "poise-sim", "messages": [{"role": "user", "content": "Hello"}]}
    return await stream_chat("127.0.0.1", port, body | {"max_tokens": tokens, "ignore_eos": True}, timeout_s=DEADLINE_S)


async def fleet_once(port: int, field: str) -> list[dict[str, Any]]:
    """`/api/fleet`, as soon as `field` is known of every replica."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            replicas: list[dict[str, Any]] = json.loads((await get(port, "/api/fleet"))[1])["replicas"]
            if all(replica[field] is not None for replica in replicas):
                return replicas
            await asyncio.sleep(0.05)


async def test_requests_are_answered_and_counted() -> None:
    async with engines() as running, Gateway(settings_for(running.urls)) as gateway:
        answers = await asyncio.gather(*(ask(gateway.port) for _ in range(8)))
        assert [answer.error for answer in answers] == [None] * 8
        assert {answer.headers["x-poise-replica"] for answer in answers} <= {"r1", "r2"}
        assert (await get(gateway.port, "/health"))[0] == 200
        assert (await get(gateway.port, "/ready"))[0] == 200
        assert (await get(gateway.admin_port, "/healthz"))[0] == 200
        assert (await get(gateway.admin_port, "/readyz"))[0] == 200
        replicas = await fleet_once(gateway.admin_port, "kv_usage_ratio")
        assert [replica["name"] for replica in replicas] == ["r1", "r2"]
        assert sum(replica["requests"]["completed"] for replica in replicas) == 8
        page = (await get(gateway.admin_port, "/metrics"))[1].decode()
        assert 'poise_requests_total{route="chat",outcome="completed"} 8' in page
        assert 'poise_info{version="0.1.0",policy="soft_affinity"} 1' in page


async def test_the_models_of_the_replicas_are_known_soon_after_the_start() -> None:
    async with engines() as running, Gateway(settings_for(running.urls)) as gateway:
        replicas = await fleet_once(gateway.admin_port, "model")
        assert {replica["model"] for replica in replicas} == {"poise-sim"}
        assert b"poise-sim" in (await get(gateway.port, "/v1/models"))[1]


async def test_keys_are_asked_for_on_the_data_port_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: a, key: sk-1}]\n")
    async with engines(1) as running, Gateway(settings_for(running.urls, keys__file=str(keys))) as gateway:
        assert (await ask(gateway.port)).status == 401
        assert (await get(gateway.admin_port, "/api/fleet"))[0] == 200


async def test_requests_are_logged(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    async with engines(1) as running, Gateway(settings_for(running.urls, log__requests=str(path))) as gateway:
        await ask(gateway.port)
    (line,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["route"], line["outcome"], line["replica"], line["output_tokens"]) == ("chat", "completed", "r1", 4)


async def test_nothing_listens_and_no_task_runs_after_the_end() -> None:
    async with engines(1) as running:
        before = asyncio.all_tasks()
        async with Gateway(settings_for(running.urls)) as gateway:
            ports = gateway.port, gateway.admin_port
            await ask(gateway.port)
        for port in ports:
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before


async def test_open_requests_may_end_while_the_gateway_drains() -> None:
    async with engines(1, speed=1.0) as running:
        gateway = Gateway(settings_for(running.urls))
        await gateway.start()
        port, admin_port = gateway.port, gateway.admin_port
        answer = asyncio.get_running_loop().create_task(ask(gateway.port, tokens=60))
        await until(lambda: gateway.data_path.counters.in_flight == 1, "the request to arrive")
        closing = asyncio.get_running_loop().create_task(gateway.close(drain_s=DEADLINE_S))
        await asyncio.sleep(0.05)
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        assert (await get(admin_port, "/readyz"))[0] == 503, "watched to the last, and no longer ready"
        assert (await answer).error is None
        assert (await answer).output_tokens == 60
        await closing


async def test_what_outlasts_the_drain_is_cut() -> None:
    async with engines(1, speed=1.0) as running:
        gateway = Gateway(settings_for(running.urls))
        await gateway.start()
        answer = asyncio.get_running_loop().create_task(ask(gateway.port, tokens=2000))
        await until(lambda: gateway.data_path.counters.in_flight == 1, "the request to arrive")
        async with asyncio.timeout(DEADLINE_S):
            await gateway.close(drain_s=0.2)
            assert (await answer).error is not None


@pytest.mark.parametrize("port_key", ["port", "admin.port"])
async def test_a_port_in_use_is_said_so_and_nothing_stays_open(port_key: str) -> None:
    async with engines(1) as running:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            before = asyncio.all_tasks()
            with pytest.raises(
                PortError, match=f"cannot listen on 127.0.0.1 port {port}: the port is in use"
            ) as raised:
                await Gateway(settings_for(running.urls, **{port_key: port})).start()
            assert raised.value.in_use
            assert (raised.value.hint or "").startswith("choose another port, or stop the process that has it")
            await asyncio.sleep(0)
            assert asyncio.all_tasks() <= before


async def test_what_cannot_work_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no replica"):
        Gateway(settings_for([]))
    with pytest.raises(StartError, match=r"request log .* cannot be written: Is a directory"):
        Gateway(settings_for(["http://127.0.0.1:1"], log__requests=str(tmp_path)))


async def test_a_gateway_without_a_living_replica_starts_and_answers_for_itself() -> None:
    async with Gateway(settings_for(["http://127.0.0.1:1"])) as gateway:
        assert (await get(gateway.port, "/health"))[0] == 200
        assert (await ask(gateway.port)).status in (502, 503)
        (replica,) = await fleet_once(gateway.admin_port, "scrape_error")
        refused = await ask(gateway.port)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1"), "known to be dead: said at once"
        assert "refused" in replica["scrape_error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_command_after_open_requests(number: signal.Signals) -> None:
    async with engines(1, speed=1.0) as running, serve_command("--replica", running.urls[0]) as (process, lines):
        assert "1 replica, policy soft_affinity; metrics on 127.0.0.1:" in lines[0]
        assert '"model": "poise-sim"' in lines[-1], "the example can be pasted as it is"
        answer = asyncio.get_running_loop().create_task(ask(data_port(lines), tokens=60))
        await asyncio.sleep(0.3)
        process.send_signal(number)
        async with asyncio.timeout(DEADLINE_S):
            assert (await answer).error is None
            stdout, _ = await process.communicate()
        assert (process.returncode, stdout) == (0, b"")


async def test_a_second_signal_ends_the_command_at_once() -> None:
    async with engines(1, speed=1.0) as running, serve_command("--replica", running.urls[0]) as (process, lines):
        answer = asyncio.get_running_loop().create_task(ask(data_port(lines), tokens=4000))
        await asyncio.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert process.returncode is None, "it waits for the open request"
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            await process.wait()
            assert (await answer).error is not None
        assert process.returncode != 0


async def test_the_command_says_in_words_that_a_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "poise", "serve", "--replica", "http://127.0.0.1:1", "--admin-port", "0"),
            *("--host", "127.0.0.1", "--port", str(port)),
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(DEADLINE_S):
            _, stderr = await process.communicate()
    assert process.returncode == 1
    assert f"error: cannot listen on 127.0.0.1 port {port}: the port is in use\nhint: " in stderr.decode()
    assert b"Traceback" not in stderr
