"""`poise serve` as a process of its own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

START_S = 15.0


async def start_serve(*arguments: str) -> asyncio.subprocess.Process:
    """Start it on loopback and on free ports, unless `arguments` name others."""
    command = ("-m", "poise", "serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", *arguments)
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def lines_until(process: asyncio.subprocess.Process, start: str) -> list[str]:
    """Its lines up to the first that begins with `start`."""
    assert process.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(START_S):
        while not lines or not lines[-1].startswith(start):
            line = await process.stderr.readline()
            assert line, lines
            lines.append(line.decode().rstrip())
    return lines


@asynccontextmanager
async def serve_command(
    *arguments: str, until: str = "try: "
) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[str]]]:
    """A running process, and its lines up to the one that begins with `until`; killed at the end of the block."""
    process = await start_serve(*arguments)
    try:
        yield process, await lines_until(process, until)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def data_port(lines: list[str]) -> int:
    """The data port that it says it listens on."""
    (listening,) = [line for line in lines if line.startswith("poise listens on ")]
    return int(listening.split()[3].rstrip(":").rpartition(":")[2])


def admin_port(lines: list[str]) -> int:
    """The admin port that it says it listens on."""
    (listening,) = [line for line in lines if line.startswith("poise listens on ")]
    return int(listening.rpartition(":")[2])
