"""Replicas that answer when a test says so, and callers' keys."""

import asyncio
from hashlib import sha256

from poise.admission.api_key import ApiKey
from poise.admission.keys import KeyRing
from support.scripted_replica import Exchange
from support.scripts import answers


class Gate:
    """A script that holds every request until it is let go. `order` are the bodies as they came."""

    def __init__(self) -> None:
        self.order: list[bytes] = []
        self._held: list[asyncio.Event] = []
        self._expected = 0
        """How many may pass that had not arrived when they were let go."""
        self._open = False

    async def __call__(self, exchange: Exchange) -> None:
        """The script."""
        self.order.append(exchange.body)
        if self._expected:
            self._expected -= 1
        elif not self._open:
            held = asyncio.Event()
            self._held.append(held)
            await held.wait()
        await answers()(exchange)

    def let_go(self, count: int = 1) -> None:
        """Answer those that were held longest, or whoever comes next if there are fewer."""
        self._expected += max(0, count - len(self._held))
        for held in self._held[:count]:
            held.set()
        del self._held[:count]

    def open(self) -> None:
        """From now on answer everything at once."""
        self._open = True
        self.let_go(len(self._held))


def ring(*keys: ApiKey) -> KeyRing:
    """Keys whose secrets are `sk-` and their name."""
    return KeyRing({sha256(b"sk-" + key.name.encode()).digest(): key for key in keys})


def bearer(name: str) -> list[tuple[str, str]]:
    """The header of the key called so."""
    return [("Authorization", f"Bearer sk-{name}")]
