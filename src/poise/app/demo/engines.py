"""The demo's engines: one child process that simulates them, so that the gateway does not share its core."""

import asyncio
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

from poise.app.errors import StartError

START_S = 20.0
STOP_S = 3.0


class EngineProcess:
    """`count` simulated engines on free ports, running from `async with` to the end of its block; `urls` reach them.

    The child stops by itself when this process ends, however it ends: its standard input is then closed.
    """

    def __init__(self, count: int, profile: str, speed: float) -> None:
        self.urls: list[str] = []
        self._count = count
        self._arguments = ["--port", "0", "--count", str(count), "--profile", profile, "--speed", str(speed)]

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "poise", "engine", "--until-stdin-closes", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which stops the engines last
        )
        try:
            await self._read_urls()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _read_urls(self) -> None:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                while len(self.urls) < self._count:
                    line = await self._process.stdout.readline()
                    if not line:
                        raise StartError(f"the simulated engines did not start: {await self._said()}")
                    self.urls.append(line.decode().strip())
        except TimeoutError:
            raise StartError(f"the simulated engines did not start within {START_S:g} s") from None

    async def _said(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode("utf-8", "replace").strip()

    async def _stop(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.communicate()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
