"""`poise demo` as a command: it shows something, and leaves nothing behind however it ends."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from support.wire import until

DEADLINE_S = 30.0


@asynccontextmanager
async def demo(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "poise", "demo", "--port", "0", "--admin-port", "0", "--replicas", "2"),
        *("--speed", "10", "--rate", "10", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "100"},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def first_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        return (await process.stdout.readline()).decode()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def gone(pids: list[int]) -> None:
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"{pids} to end", DEADLINE_S)


async def test_it_runs_for_its_time_and_says_what_callers_saw() -> None:
    async with demo("--duration", "3", "--policy", "round_robin") as process:
        async with asyncio.timeout(DEADLINE_S):
            stdout, stderr = await process.communicate()
    first, example, *lines, last = stdout.decode().splitlines()
    assert (process.returncode, stderr) == (0, b"")
    assert first.startswith(
        "poise demo: 2 simulated engines (rtx-4090-llama-3.1-8b), policy round_robin; metrics on http"
    )
    assert example.startswith("try it: curl -N http://127.0.0.1:")
    assert lines
    assert all("r1 running" in line and "r2 running" in line for line in lines)
    assert last.startswith("policy round_robin: ")
    assert int(last.split()[2]) > 0
    assert "failed" not in last


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_cleanly(number: signal.Signals) -> None:
    async with demo() as process:
        await first_line(process)
        children = children_of(process.pid)
        assert children
        await asyncio.sleep(1)
        process.send_signal(number)
        async with asyncio.timeout(DEADLINE_S):
            stdout, stderr = await process.communicate()
        assert (process.returncode, stderr) == (0, b"")
        assert stdout.decode().splitlines()[-1].startswith("policy soft_affinity: ")
        await gone(children)


@needs_proc
async def test_no_engine_outlives_a_demo_that_was_killed() -> None:
    async with demo() as process:
        await first_line(process)
        children = children_of(process.pid)
        process.kill()
        await gone(children)


async def test_a_usual_port_in_use_is_replaced_by_a_free_one_and_one_asked_for_is_not() -> None:
    with ExitStack() as held:
        with suppress(OSError):  # another process has it, which is just as well
            held.enter_context(socket.create_server(("127.0.0.1", 8080)))
        usual = [sys.executable, "-m", "poise", "demo", "--replicas", "1", "--duration", "1.5", "--rate", "20"]
        for arguments, code in ((["--admin-port", "0"], 0), (["--admin-port", "0", "--port", "8080"], 1)):
            process = await asyncio.create_subprocess_exec(
                *usual, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            async with asyncio.timeout(DEADLINE_S):
                stdout, stderr = await process.communicate()
            assert process.returncode == code, stderr
            assert b"127.0.0.1:8080" not in stdout
            assert (b"cannot listen on 127.0.0.1 port 8080: the port is in use" in stderr) == bool(code)
