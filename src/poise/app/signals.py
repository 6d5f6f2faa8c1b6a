"""How a process of Poise is told to stop, and to read its configuration again."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable


def stop_signal() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM, after which both have their usual effect again."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return stopped


def on_hangup(action: Callable[[], None]) -> None:
    """Do `action` at each SIGHUP."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)


def also_when_stdin_closes(stopped: asyncio.Event) -> None:
    """Set `stopped` when standard input ends too: a child whose parent died, in whatever way, then stops as well."""
    loop = asyncio.get_running_loop()
    stdin = sys.stdin.fileno()

    def read() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            stopped.set()

    loop.add_reader(stdin, read)
