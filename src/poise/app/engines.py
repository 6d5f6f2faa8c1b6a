"""Runs simulated engines until a signal ends them."""

from collections.abc import Callable

import uvloop

from poise.app.errors import PortError
from poise.app.signals import also_when_stdin_closes, stop_signal
from poise.engine.settings import EngineSettings
from poise.engine.simulated_engines import SimulatedEngines


def run_engines(settings: EngineSettings, show_url: Callable[[str], None], *, until_stdin_closes: bool) -> None:
    """Serve until SIGINT or SIGTERM. `show_url` is given the address of each engine once it listens.

    Raises `PortError` if a port cannot be had.
    """
    uvloop.run(_serve(settings, show_url, until_stdin_closes))


async def _serve(settings: EngineSettings, show_url: Callable[[str], None], until_stdin_closes: bool) -> None:
    stopped = stop_signal()
    if until_stdin_closes:
        also_when_stdin_closes(stopped)
    engines = SimulatedEngines(settings)
    try:
        await engines.start()
    except OSError as error:
        raise PortError(settings.host, settings.port + len(engines.ports), error) from None
    for url in engines.urls:
        show_url(url)
    await stopped.wait()
    await engines.close()
