"""A newer process takes the ports over from an older one, and a process that stops, without a caller noticing."""

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack

from support.apis import CHAT
from support.http_bytes import request
from support.raw_client import open_client
from support.scripted_replica import ScriptedReplica
from support.scripts import answers
from support.serve_command import admin_port, data_port, serve_command
from support.wire import DEADLINE_S, PeerGone

ASK = request(body=CHAT.request_body(stream=False))
LANES = 8
TAKEOVERS = 3


async def ask_for_ever(port: int, seen: Counter[str], *, kept: bool) -> None:
    """One request after another, each on a new connection, or all on one for as long as the gateway keeps it."""
    client = None
    while True:
        try:
            client = client or await open_client(port)
            answer = await client.ask(ASK)
            seen[str(answer.status)] += 1
            if not kept or answer.value("connection") == b"close":
                client.close()
                client = None
        except PeerGone as error:
            seen[f"{error} on a {'kept' if kept else 'new'} connection"] += 1
            client = None
        except OSError as error:
            seen[type(error).__name__] += 1
        await asyncio.sleep(0)


async def test_no_connection_is_refused_or_reset_while_processes_take_over() -> None:
    seen: Counter[str] = Counter()
    async with ScriptedReplica(answers()) as replica, AsyncExitStack() as processes:
        command = ("--replica", f"http://127.0.0.1:{replica.port}", "--reuse-port")
        older, lines = await processes.enter_async_context(serve_command(*command))
        ports = ("--port", str(data_port(lines)), "--admin-port", str(admin_port(lines)))
        lanes = [
            asyncio.create_task(ask_for_ever(data_port(lines), seen, kept=number % 4 == 0)) for number in range(LANES)
        ]
        for _ in range(TAKEOVERS):
            newer, _ = await processes.enter_async_context(serve_command(*command, *ports))
            before = seen.total()
            older.send_signal(signal.SIGTERM)
            async with asyncio.timeout(DEADLINE_S):
                assert await older.wait() == 0
            assert seen.total() > before
            older = newer
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
        assert set(seen) == {"200"}, seen
