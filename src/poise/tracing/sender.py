"""Delivers the traces of requests in a thread of its own: a collector that is slow or gone costs traces, no request."""

from collections import deque
from collections.abc import Sequence
from threading import Event, Thread
from typing import Protocol

import structlog

from poise.proxy.trail import Trail

log = structlog.get_logger()
MOST_WAITING = 2048
"""Requests that wait to be delivered; what comes on top is lost."""
BATCH = 256
PAUSE_S = 1.0
"""How long requests are collected for one delivery."""
CLOSE_S = 2.0


class Delivery(Protocol):
    """The way to a collector. Used by one thread."""

    def deliver(self, batch: Sequence[Trail]) -> bool:
        """Send the traces of requests that have ended; returns whether the collector took them. May take its time."""

    def close(self) -> None:
        """There will be no more."""


class Sender:
    """Collects ended requests and has them delivered in batches."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._waiting: deque[Trail] = deque()
        self._refused = self._failed = 0
        """Counted by the owner, and by the thread."""
        self._works = True
        self._ends = Event()
        self._thread = Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Requests whose spans will never arrive."""
        return self._refused + self._failed

    def put(self, trail: Trail) -> None:
        """Deliver `trail` soon."""
        if len(self._waiting) >= MOST_WAITING:
            self._refused += 1
        else:
            self._waiting.append(trail)

    def close(self) -> None:
        """Deliver what is left, for `CLOSE_S` at most."""
        self._ends.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._ends.wait(PAUSE_S):
            self._empty()
        self._empty()  # what came last
        self._delivery.close()

    def _empty(self) -> None:
        while batch := [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]:
            if not self._try(batch):
                self._failed += len(batch)
                return  # what else waits has a better chance later

    def _try(self, batch: Sequence[Trail]) -> bool:
        try:
            worked, why = self._delivery.deliver(batch), "the collector did not take them"
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread has to go on
            worked, why = False, str(error)
        if worked is not self._works:
            self._works = worked
            if worked:
                log.info("traces are delivered again")
            else:
                log.warning("traces are lost", problem=why)
        return worked
