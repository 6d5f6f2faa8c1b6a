"""One page of one server that is looked at again and again, in turns of its own, never twice at once."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from poise.core.errors import PoiseError
from poise.core.replica import ReplicaAddress
from poise.telemetry.http_get import GetError, PageGetter


class Page(NamedTuple):
    """A page of a server: its address without rank, and the path and query on it."""

    address: ReplicaAddress
    target: str


EARLY_RATIO = 0.05
"""Share of the interval by which a timer may be early, or a look late, without taking the next turn for its own."""

MISSING_AFTER = 100
"""Looks in a row at a page that is not there: an engine that starts may not have it yet."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Turns every `interval_s`, each with a deadline of `timeout_s`.

    First turns are spread over `first_within_s`. After a failure the next one is taken within `retry_s`.
    """

    interval_s: float
    timeout_s: float
    first_within_s: float
    retry_s: float
    start_s: float
    clock: Callable[[], float]
    missing_pause_s: float = 0.0
    """Least pause where there is no such page (404), as `MISSING_AFTER` looks have shown."""

    def first_pause_s(self, offset_s: float) -> float:
        """How long the first turn waits."""
        return self.first_within_s * offset_s / self.interval_s

    def pause_s(self, offset_s: float) -> float:
        """How long it is from now to the next turn of the one whose turns come `offset_s` later than the schedule's."""
        turns = (self.clock() - self.start_s - offset_s) / self.interval_s
        return (math.floor(turns + EARLY_RATIO) + 1 - turns) * self.interval_s


class PageReader(Protocol):
    """What is done with a page. Called from one task, `began` first and then one of the others."""

    def began(self) -> None:
        """A look begins now."""

    def read(self, page: bytes) -> None:
        """The page has come. May raise `PoiseError`, which is then given to `failed`."""

    def failed(self, error: PoiseError) -> None:
        """The look gave nothing usable."""


class Watch:
    """Gets `page` in turns and hands the page to `reader`. `offset_s` spreads many watches evenly over the interval.

    A look that takes longer than the interval waits for its own next turn; it delays no other watch.
    """

    def __init__(self, page: Page, reader: PageReader, schedule: Schedule) -> None:
        self.offset_s = 0.0
        self.hosts: Sequence[str] = ()
        """The addresses of the page's server, if they are known."""
        self._target = page.target
        self._reader = reader
        self._schedule = schedule
        self._getter = PageGetter(page.address)
        self._wake = asyncio.Event()
        self._missing = 0

    async def run(self, first_in_s: float) -> None:
        """Look first in `first_in_s` and then until cancelled. The connection ends with it."""
        try:
            await asyncio.sleep(first_in_s)
            while True:
                await self._pause(good=await self._look())
        finally:
            self._getter.close()

    def look_soon(self) -> None:
        """Do not wait for the next turn."""
        self._wake.set()

    async def _look(self) -> bool:
        self._reader.began()
        try:
            self._reader.read(await self._getter.get(self._target, self._schedule.timeout_s, self.hosts))
        except PoiseError as error:
            self._reader.failed(error)
            self._missing = self._missing + 1 if isinstance(error, GetError) and error.status == 404 else 0
            return False
        self._missing = 0
        return True

    async def _pause(self, *, good: bool) -> None:
        pause_s = self._schedule.pause_s(self.offset_s)
        if not good:
            pause_s = min(pause_s, self._schedule.retry_s)
        if self._missing >= MISSING_AFTER:
            pause_s = max(pause_s, self._schedule.missing_pause_s)
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
