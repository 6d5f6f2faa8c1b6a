"""Runs a gateway until a signal ends it."""

import asyncio
import gc
import json
import resource
import shlex
from collections.abc import Callable
from contextlib import suppress

import uvloop

from poise.app.gateway import Gateway
from poise.app.log import configure_log
from poise.app.signals import on_hangup, stop_signal
from poise.app.startup import first_answers, missing, wait_for_replicas
from poise.config.load import ConfigInputs
from poise.config.settings import Settings


def run_gateway(settings: Settings, inputs: ConfigInputs, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal ends the process at once. `say` shows a line.

    SIGHUP reads `inputs`, which `settings` came from, again.
    """
    configure_log(settings.log.level)
    _allow_many_connections()
    uvloop.run(_serve(settings, inputs, say))


async def _serve(settings: Settings, inputs: ConfigInputs, say: Callable[[str], None]) -> None:
    stopped = stop_signal()
    gateway = Gateway(settings, inputs=inputs)
    on_hangup(gateway.reload)
    await gateway.watch()
    drain_s = delay_s = 0.0
    try:
        await wait_for_replicas(gateway.fleet, settings.startup, say, stopped)
        if not stopped.is_set():
            await gateway.listen()
            await _tell(gateway, say, stopped)
            _calm_collector()
            await stopped.wait()
            timeouts = gateway.settings.timeouts
            drain_s, delay_s = timeouts.drain_s, timeouts.drain_delay_s
            say(f"stopping: open requests have {drain_s:g} s to end; once more to stop at once")
    finally:
        if cut := await gateway.close(drain_s, delay_s):
            say(f"cut {cut} open request{'s' * (cut > 1)}")


async def _tell(gateway: Gateway, say: Callable[[str], None], stopped: asyncio.Event) -> None:
    settings = gateway.settings
    count = len(settings.replicas)
    say(
        f"poise listens on {settings.host}:{gateway.port}: {count} replica{'s' * (count > 1)}, "
        f"policy {settings.policy.name}; metrics on {settings.admin.host}:{gateway.admin_port}"
    )
    await first_answers(gateway.fleet, stopped)
    if names := missing(gateway.fleet):
        say(f"has not heard of {names} yet, and does not wait (startup.wait_for_replicas)")
    say("try: " + example_request(gateway.port, next(iter(gateway.fleet.models()), None)))


def _allow_many_connections() -> None:
    """Open as many files as the system allows: a request takes two, and the usual bound of 1024 can be raised."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # macOS says that there is no bound, and then knows one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _calm_collector() -> None:
    """Keep the garbage collector from walking what lives as long as the process, and from looking at every round.

    With 400 streams it took 8% of the gateway's time: the writes of one round of the event loop are more objects than
    its usual threshold of 700, and are gone a moment later.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def example_request(port: int, model: str | None) -> str:
    """A `curl` line that asks for a streamed answer of `model`, or what is served if that is not known yet."""
    base = f"http://127.0.0.1:{port}/v1"
    if model is None:
        return f"curl {base}/models"
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    return f"curl -N {base}/chat/completions -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
