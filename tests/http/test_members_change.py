"""Replicas come, change and go while streams flow: through the file, by a signal, through the admin port."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from poise.app.gateway import Gateway
from poise.bench.client import TimedAnswer, stream_chat
from poise.config.load import ConfigInputs
from poise.engine.settings import EngineSettings
from poise.engine.simulated_engines import SimulatedEngines
from support.serve_command import data_port, lines_until, serve_command
from support.wire import until

DEADLINE_S = 15.0


def engines(count: int = 2, speed: float = 2.0) -> SimulatedEngines:
    return SimulatedEngines(EngineSettings(port=0, count=count, speed=speed))


def write(path: Path, *urls: str, more: str = "") -> None:
    """Replace the file as an editor does, by a rename."""
    lines = [f"  - {{url: '{url}', name: e{number}}}" for number, url in enumerate(urls, 1)]
    draft = path.with_suffix(".draft")
    draft.write_text("\n".join(["replicas:", *lines, more, ""]))
    draft.rename(path)


@asynccontextmanager
async def following(path: Path) -> AsyncIterator[Gateway]:
    overrides = {
        "host": "127.0.0.1", "port": 0, "admin.port": 0, "telemetry.interval_s": 0.1,
        "membership.check_interval_s": 0.02, "policy.name": "round_robin",
    }  # fmt: skip
    inputs = ConfigInputs(str(path), {}, overrides)
    async with Gateway(inputs.load().settings, inputs=inputs) as gateway:
        yield gateway


async def ask(port: int, tokens: int = 4) -> TimedAnswer:
    body = {"model": "poise-sim", "messages": [{"role": "user", "content": "Hello"}]}
    return await stream_chat("127.0.0.1", port, body | {"max_tokens": tokens, "ignore_eos": True}, timeout_s=DEADLINE_S)


async def call(port: int, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of one request to the admin port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close", f"content-length: {len(sent)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
    head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(answer)


def names(gateway: Gateway) -> set[str]:
    return {replica.name for replica in gateway.fleet}


async def test_the_file_is_followed_and_no_stream_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "poise.yaml"
    async with engines(3) as running:
        one, two, three = running.urls
        write(path, one, two)
        async with following(path) as gateway:
            streams = [asyncio.get_running_loop().create_task(ask(gateway.port, tokens=100)) for _ in range(4)]
            await until(lambda: gateway.data_path.counters.in_flight == 4, "the streams to begin")
            write(path, three)
            await until(lambda: [r.spec.address.url for r in gateway.fleet if not r.leaving] == [three], "the change")
            assert {str(r.state) for r in gateway.fleet if r.leaving} == {"draining"}
            assert {(await ask(gateway.port)).error for _ in range(4)} == {None}
            page = (await call(gateway.admin_port, "GET", "/api/fleet"))[1]["replicas"]
            assert {(r["name"], r["state"], r["in_flight"]) for r in page} == {
                ("e1", "draining", 2), ("e2", "draining", 2), ("e1", "ready", 0),
            }  # fmt: skip
            answers = await asyncio.gather(*streams)
            assert {(answer.error, answer.output_tokens) for answer in answers} == {(None, 100)}
            await until(lambda: len(list(gateway.fleet)) == 1, "the old ones to be gone")
            (left,) = gateway.fleet
            assert (left.name, left.outcomes["completed"]) == ("e1", 4)  # type: ignore[index]


async def test_a_bad_file_changes_nothing_and_the_next_good_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "poise.yaml"
    async with engines(2) as running:
        write(path, *running.urls)
        async with following(path) as gateway:
            for bad in ("replicas: [", "replicas: []\n", "replicas:\n  - {url: 'http://h:1', labels: 3}\n"):
                path.write_text(bad)
                await asyncio.sleep(0.1)
                assert names(gateway) == {"e1", "e2"}
            write(
                path, running.urls[0], more="timeouts: {idle_s: 9}\nlimits: {kv_throttle: 0.5}\npolicy: {name: random}"
            )
            await until(lambda: names(gateway) == {"e1"}, "the good file to be applied")
            assert gateway.data_path.settings.timeouts.idle_s == 9
            assert gateway.fleet.kv_throttle_ratio == 0.5
            assert (await ask(gateway.port)).error is None


async def test_replicas_are_added_drained_and_removed_through_the_admin_port(tmp_path: Path) -> None:
    path = tmp_path / "poise.yaml"
    async with engines(2) as running:
        write(path, running.urls[0])
        async with following(path) as gateway:
            admin = gateway.admin_port
            assert await call(admin, "POST", "/api/replicas", {"url": running.urls[1], "name": "x"}) == (
                201,
                {"name": "x"},
            )
            assert (await call(admin, "POST", "/api/replicas", {"url": running.urls[1]}))[0] == 409
            assert (await call(admin, "POST", "/api/replicas", {"url": "x"}))[0] == 422
            stream = asyncio.get_running_loop().create_task(ask(gateway.port, tokens=100))
            await until(lambda: gateway.data_path.counters.in_flight == 1, "the stream to begin")
            (busy,) = [r.name for r in gateway.fleet if r.in_flight]
            other = "x" if busy == "e1" else "e1"
            assert (await call(admin, "POST", f"/api/replicas/{busy}/drain"))[0] == 202
            assert {(await ask(gateway.port)).headers["x-poise-replica"] for _ in range(3)} == {other}
            assert (await call(admin, "POST", f"/api/replicas/{busy}/resume"))[0] == 202
            assert {(await ask(gateway.port)).headers["x-poise-replica"] for _ in range(2)} == {busy, other}
            assert (await call(admin, "DELETE", f"/api/replicas/{busy}"))[0] == 202
            assert (await call(admin, "DELETE", f"/api/replicas/{busy}"))[0] == 404
            write(path, running.urls[0], more="timeouts: {idle_s: 9}")
            await until(lambda: gateway.settings.timeouts.idle_s == 9, "the file to be read again")
            assert {r.name for r in gateway.fleet if not r.leaving} == {other}
            assert ((await stream).error, (await stream).output_tokens) == (None, 100)
            assert names(gateway) == {other}


async def test_a_hangup_reads_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "poise.yaml"
    async with engines(2) as running:
        write(path, running.urls[0])
        slow = ("--set", "membership.check_interval_s=600")
        async with serve_command("--config", str(path), *slow) as (process, lines):
            assert (await ask(data_port(lines))).error is None
            write(path, running.urls[1], more="admin: {host: 127.0.0.2}")
            process.send_signal(signal.SIGHUP)
            said = await lines_until(process, "")
            while "configuration applied" not in said[-1]:
                said += await lines_until(process, "")
            assert any("restart needed" in line and "admin.host" in line for line in said), said
            assert (await ask(data_port(lines))).error is None
            path.write_text("replicas: [")
            process.send_signal(signal.SIGHUP)
            said = await lines_until(process, "")
            assert "configuration refused" in said[0]
            assert process.returncode is None
