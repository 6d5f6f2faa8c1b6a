"""Starts and stops simulated vLLM servers: inside another process's event loop, or as all that a process does."""

import asyncio
from types import TracebackType
from typing import Self

from poise.engine.server import EngineServer
from poise.engine.settings import EngineSettings

BACKLOG = 2048


class SimulatedEngines:
    """The servers of `settings`: `async with`, or `start` and `close`. With port 0 each gets a free port; `ports` says
    which."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.servers: list[EngineServer] = []
        self.ports: list[int] = []
        self._listeners: list[asyncio.Server] = []

    @property
    def urls(self) -> list[str]:
        """The root address of each server."""
        return [f"http://{self.settings.host}:{port}" for port in self.ports]

    async def start(self) -> None:
        """Listen on all ports. If one is taken, nothing stays open and `OSError` is raised."""
        loop = asyncio.get_running_loop()
        try:
            for number in range(self.settings.count):
                server = EngineServer(self.settings, number)
                port = self.settings.port + number if self.settings.port else 0
                listener = await loop.create_server(server.connect, self.settings.host, port, backlog=BACKLOG)
                self.servers.append(server)
                self._listeners.append(listener)
                self.ports.append(listener.sockets[0].getsockname()[1])
        except OSError:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening, drop all connections, stop the engines."""
        for listener in self._listeners:
            listener.close()
        for server in self.servers:
            server.close()
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def serve_engines(settings: EngineSettings) -> None:
    """Run the servers of `settings` until the task is cancelled."""
    async with SimulatedEngines(settings):
        await asyncio.Event().wait()
