"""Simulated engines, the gateway, traffic and a live view in one command: no GPU, no network, nothing to set up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import uvloop
from rich.console import Console
from rich.live import Live

from poise.app.demo.engines import EngineProcess
from poise.app.demo.traffic import Traffic
from poise.app.demo.view import live_view, plain_line, traffic_line
from poise.app.errors import PortError, StartError
from poise.app.gateway import Gateway
from poise.app.log import configure_log
from poise.app.run import example_request
from poise.app.signals import stop_signal
from poise.config.load import load_config
from poise.core.clock import monotonic_s
from poise.engine.settings import DEFAULT_MODEL

LIVE_EVERY_S = 0.5
LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What `poise demo` is told.

    `conversations_per_s` new conversations begin each second. `duration_s` None runs until interrupted. A port None is
    the usual one, or any other if that is in use.
    """

    replicas: int
    policy: str
    profile: str
    speed: float
    conversations_per_s: float
    duration_s: float | None
    port: int | None
    admin_port: int | None
    seed: int


def run_demo(demo: DemoSettings, console: Console) -> None:
    """Run until the duration is over or a signal comes. Raises `PoiseError` if something cannot start, and if no
    request was answered."""
    load_config(None, {}, {"policy.name": demo.policy})  # before anything is started
    configure_log("error")
    uvloop.run(_run(demo, console))


async def _run(demo: DemoSettings, console: Console) -> None:
    stopped = stop_signal()
    async with (
        EngineProcess(demo.replicas, demo.profile, demo.speed) as engines,
        _gateway(demo, engines.urls) as gateway,
        Traffic(gateway.port, DEFAULT_MODEL, demo.conversations_per_s, Random(demo.seed)) as traffic,
    ):
        await _show(demo, gateway, traffic, stopped, console)
        summary = traffic.summary()
    console.print(f"policy {demo.policy}: {traffic_line(summary)}", highlight=False, markup=False)
    if not summary.completed and not stopped.is_set():
        raise StartError("no request was answered", hint=summary.last_error or "let the demo run for longer")


@asynccontextmanager
async def _gateway(demo: DemoSettings, urls: list[str]) -> AsyncIterator[Gateway]:
    ports = {"port": demo.port, "admin.port": demo.admin_port}
    overrides: dict[str, Any] = {"host": "127.0.0.1", "replicas": urls, "policy.name": demo.policy}
    overrides |= {key: port for key, port in ports.items() if port is not None}
    gateway = Gateway(load_config(None, {}, overrides).settings)
    try:
        await gateway.start()
    except PortError as error:
        free_ones = {key: 0 for key, port in ports.items() if port is None}
        if not error.in_use or not free_ones:
            raise
        gateway = Gateway(load_config(None, {}, overrides | free_ones).settings)
        await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.close()


async def _show(
    demo: DemoSettings, gateway: Gateway, traffic: Traffic, stopped: asyncio.Event, console: Console
) -> None:
    """Show the fleet and the traffic until it is time to stop: a live table, or lines where there is no terminal."""
    started_s = monotonic_s()
    console.print(
        f"poise demo: {demo.replicas} simulated engines ({demo.profile}), policy {demo.policy}; "
        f"metrics on http://127.0.0.1:{gateway.admin_port}/metrics\n"
        f"try it: {example_request(gateway.port, DEFAULT_MODEL)}",
        highlight=False,
        markup=False,
    )
    if not console.is_terminal:
        async for elapsed_s in _ticks(started_s, LINE_EVERY_S, demo.duration_s, stopped):
            console.print(plain_line(gateway.fleet, traffic.summary(), elapsed_s), highlight=False, markup=False)
        return
    with Live(console=console, auto_refresh=False) as live:
        async for _ in _ticks(started_s, LIVE_EVERY_S, demo.duration_s, stopped):
            live.update(live_view(gateway.fleet, traffic.summary()), refresh=True)


async def _ticks(
    started_s: float, every_s: float, duration_s: float | None, stopped: asyncio.Event
) -> AsyncIterator[float]:
    """Seconds since `started_s`, every `every_s`, until `duration_s` is over or `stopped` is set."""
    end_s = float("inf") if duration_s is None else started_s + duration_s
    while not stopped.is_set() and (left_s := end_s - monotonic_s()) > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(every_s, left_s)):
                await stopped.wait()
        yield monotonic_s() - started_s
