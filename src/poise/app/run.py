"""Runs a gateway until a signal ends it."""

import asyncio
import json
import shlex
from collections.abc import Callable

import uvloop

from poise.app.gateway import Gateway
from poise.app.log import configure_log
from poise.app.signals import stop_signal
from poise.config.settings import Settings
from poise.core.clock import monotonic_s

FIRST_MODEL_S = 1.0
"""How long to wait for a replica's model list before the example request is printed without it."""


def run_gateway(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal ends the process at once. `say` shows a line."""
    configure_log(settings.log.level)
    uvloop.run(_serve(settings, say))


async def _serve(settings: Settings, say: Callable[[str], None]) -> None:
    stopped = stop_signal()
    async with Gateway(settings) as gateway:
        count = len(settings.replicas)
        say(
            f"poise listens on {settings.host}:{gateway.port}: {count} replica{'s' * (count > 1)}, "
            f"policy {settings.policy.name}; metrics on {settings.admin.host}:{gateway.admin_port}"
        )
        model = await _first_model(gateway, stopped)
        say("try: " + example_request(gateway.port, model))
        await stopped.wait()
        say(f"stopping: open requests have {settings.timeouts.drain_s:g} s to end; once more to stop at once")
        await gateway.close(settings.timeouts.drain_s)


def example_request(port: int, model: str | None) -> str:
    """A `curl` line that asks for a streamed answer of `model`, or what is served if that is not known yet."""
    base = f"http://127.0.0.1:{port}/v1"
    if model is None:
        return f"curl {base}/models"
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    return f"curl -N {base}/chat/completions -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"


async def _first_model(gateway: Gateway, stopped: asyncio.Event) -> str | None:
    deadline_s = monotonic_s() + FIRST_MODEL_S
    while monotonic_s() < deadline_s and not stopped.is_set():
        if models := gateway.fleet.models():
            return next(iter(models))
        await asyncio.sleep(0.02)
    return None
