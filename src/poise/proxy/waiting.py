"""Those who wait for a replica: wakes them in the central queue's order, and says how long others should stay away.

One pass through the queue is made in a round of the event loop in which anything has happened that may have made room,
and one at every tick of the data path, for policies that make their callers wait for reasons of their own.
"""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from poise.admission.drain_rate import retry_after_s
from poise.admission.queue import CentralQueue, Entry
from poise.core.errors import Refusal
from poise.fleet.fleet import Fleet
from poise.proxy.counters import Counters

if TYPE_CHECKING:
    from poise.fleet.pool import Pool
    from poise.proxy.settings import Limits


class WaitingLines:
    """Drives the central queue in the running event loop."""

    def __init__(self, fleet: Fleet, counters: Counters, limits: "Limits") -> None:
        self._fleet = fleet
        self._counters = counters
        self.timeout_s = limits.queue_timeout_s
        self.queue = CentralQueue(limits.queue)
        self._woken = False
        fleet.on_room = self.wake

    def apply(self, limits: "Limits") -> None:
        """Go by `limits` from now on. Those who wait already may stay."""
        self.timeout_s, self.queue.limit = limits.queue_timeout_s, limits.queue

    def must_wait(self, model: str | None) -> bool:
        """Whether a newcomer has to join its line without being asked: others wait there, or are about to be asked."""
        return self.queue.length > 0 and (self._woken or self.queue.line(model) is not None)

    def enter(self, entry: Entry) -> Refusal | None:
        """Let `entry` wait, or say why not. Somebody else may have to leave for it."""
        now_s = monotonic()
        loser = self.queue.put(entry, now_s)
        if loser is entry:
            return self.turned_away(entry, "queue_full", "as many requests wait as may")
        if loser is not None:
            self._counters.sheds += 1
            reason = "the queue is full, and this request gave way to another"
            # In the next round: ending a request may start the caller's next one, which may shed another.
            shed = self.turned_away(loser, "shed", reason)
            asyncio.get_running_loop().call_soon(loser.waiter.turn_away, shed)
        line = entry.line
        if line is not None and line.head() is entry:
            self.wake()
        return None

    def wake(self) -> None:
        """There may be room: ask those who wait, once in this round."""
        if self.queue.length and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self.ask)

    def ask(self) -> None:
        """Let everybody through who can go on, in order."""
        now_s = monotonic()
        self._woken = True  # room that is being handed out wakes nobody
        try:
            for entry in self.queue.let_through(now_s):
                self._counters.queue_wait_s.observe(now_s - entry.since_s)
        finally:
            self._woken = False

    def turned_away(self, entry: Entry, code: str, reason: str) -> Refusal:
        """What the caller of `entry`, which does not wait, is told: when to come back, and whose fault it is."""
        pool = self._fleet.pool(entry.model)
        ahead = self.queue.ahead(entry.line_name, entry.priority, entry.key)
        wait_s = retry_after_s(ahead, self._rate_per_s(entry.line_name, pool))
        if any(replica.full or replica.available for replica in pool.replicas):
            return Refusal(429, code, f"all replicas are busy: {reason}", "gateway", wait_s)
        return Refusal(503, "no_replica", f"no replica can take requests: {reason}", "gateway", wait_s)

    def timed_out(self, entry: Entry) -> Refusal:
        """What the caller of `entry` is told after `queue_timeout_s`. It waits no more."""
        self.queue.remove(entry)
        return self.turned_away(entry, "queue_timeout", f"there was no room for {self.timeout_s:g} s")

    def _rate_per_s(self, model: str | None, pool: "Pool") -> float | None:
        """Requests that `pool` takes per second: as measured, and as its replicas' recent request times say."""
        expected = 0.0
        for replica in pool.replicas:
            if replica.mean_request_time_s:
                expected += replica.in_flight / replica.mean_request_time_s
        line = self.queue.line(model)
        return expected or None if line is None else line.admissions.per_s(monotonic(), expected or None)
