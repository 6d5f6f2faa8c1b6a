"""Writes that wait until the event loop has handled everything that had arrived.

A write to a process that sleeps wakes it, which costs a virtual machine several microseconds. Written one right after
another, requests and answers wake their readers once for many; written as each was made, nearly every one pays.
"""

import asyncio

MAX_WAITING_BYTES = 256 * 1024
"""More than this is not kept waiting: large answers gain nothing from it and would be held in memory all at once."""


class WriteBatch:
    """What is written with `write` goes out at the end of the loop's round, in order. `flush` writes it at once.

    Whoever writes to a transport directly, or closes it, flushes first.
    """

    __slots__ = ("_waiting", "_waiting_bytes")

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._waiting_bytes = 0

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write `data` to `transport` at the end of the round; nothing happens if it has been closed by then."""
        waiting = self._waiting
        if not waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        waiting.append((transport, data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._waiting_bytes = 0
            for transport, data in waiting:
                if not transport.is_closing():
                    transport.write(data)
