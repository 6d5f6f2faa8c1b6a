"""The central queue: who waits for a replica, and whose turn is next. Pure: it is told when there may be room.

Each model has a line of its own, under one bound for all, so that a model whose replicas are full holds up nobody else.
In a line, retries come first, in order of arrival; then the higher priority; inside a priority the API keys share by
tokens (start-time fair queueing), each key's requests in order of arrival. Lines that compete for the same replicas
share by tokens too. Priority is strict: what waits below one that never pauses waits until its time is over. Inside a
line nobody is passed: a large request at its head is not overtaken by small ones behind it.
"""

from collections import OrderedDict
from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from poise.admission.drain_rate import DrainRate
from poise.core.errors import Refusal

RETRIES_FIRST: Final = -(2**31)
"""Sorts before every priority."""


class Waiter(Protocol):
    """Who waits."""

    def take_turn(self) -> bool:
        """Its turn has come: go on if there is room. Returns whether it has, so that it waits no more."""

    def turn_away(self, refusal: Refusal) -> None:
        """It has given way to another."""


class Entry:
    """One waiting request. `tokens` (prompt and expected output) are what its key is charged when it goes on.

    A `retry` has waited its turn before: it comes before all others, is always let in and never sheds.
    """

    __slots__ = (
        "flow", "key", "line", "line_name", "model", "number", "priority", "retry", "since_s", "tokens", "waiter",
    )  # fmt: skip

    def __init__(
        self, waiter: Waiter, *, model: str | None, priority: int, key: str | None, tokens: int, retry: bool = False
    ) -> None:
        self.waiter = waiter
        self.model = model
        self.line_name = model
        self.priority = priority
        self.key = key
        self.tokens = tokens
        self.retry = retry
        self.since_s = 0.0
        """Since when it waits."""
        self.number = 0
        """In order of arrival."""
        self.line: Line | None = None
        """Where it waits, None if it does not."""
        self.flow: Flow | None = None

    def wait_at(self, replica: str) -> None:
        """It waits for this replica alone, in a line of its own: others of its model need not wait behind it."""
        self.line_name = f"{self.model or ''} at {replica}"


class Flow:
    """What one key has waiting in one line at one priority, in order of arrival."""

    __slots__ = ("entries", "start")

    def __init__(self, start: float) -> None:
        self.entries: OrderedDict[Entry, None] = OrderedDict()
        self.start = start
        """Tokens that its level had let through, by the fair order, when its first request would start."""

    def youngest(self) -> Entry:
        """The last to come."""
        return next(reversed(self.entries))


class Level:
    """The flows of one priority in one line."""

    __slots__ = ("clock", "finished", "flows")

    def __init__(self) -> None:
        self.flows: dict[str | None, Flow] = {}
        self.clock = 0.0
        """Start of what was let through last."""
        self.finished: dict[str | None, float] = {}
        """Where keys left off that have nothing waiting: they cannot gain by coming back."""

    def next_flow(self) -> Flow:
        """Whose turn it is."""
        return min(self.flows.values(), key=lambda flow: flow.start)


class Line:
    """Those who wait for one model."""

    __slots__ = ("admissions", "length", "levels", "model", "retries", "start")

    def __init__(self, model: str | None, start: float, now_s: float) -> None:
        self.model = model
        self.retries: OrderedDict[Entry, None] = OrderedDict()
        self.levels: dict[int, Level] = {}
        self.length = 0
        self.start = start
        """As `Flow.start`, among the lines."""
        self.admissions = DrainRate(now_s)

    def head(self) -> Entry:
        """Whose turn it is. The line is not empty."""
        if self.retries:
            return next(iter(self.retries))
        return next(iter(self.levels[max(self.levels)].next_flow().entries))

    def rank(self) -> tuple[int, float]:
        """Sort key among lines: the smallest is asked first."""
        return (RETRIES_FIRST if self.retries else -max(self.levels), self.start)


class CentralQueue:
    """All that wait. `limit` bounds their number; retries are let in above it, being bounded by their budget."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.length = 0
        self._lines: dict[str | None, Line] = {}
        self._flows: dict[int, dict[Flow, None]] = {}
        """By priority, all lines together."""
        self._clock = 0.0
        self._numbers = 0

    def line(self, model: str | None) -> Line | None:
        """Those who wait for `model`, None if nobody does."""
        return self._lines.get(model)

    def lengths(self) -> dict[int, int]:
        """How many wait, by priority."""
        lengths: dict[int, int] = {}
        for line in self._lines.values():
            for entry in line.retries:
                lengths[entry.priority] = lengths.get(entry.priority, 0) + 1
        for priority, flows in self._flows.items():
            lengths[priority] = lengths.get(priority, 0) + sum(len(flow.entries) for flow in flows)
        return lengths

    def waiters(self) -> list[Waiter]:
        """All who wait, in no order."""
        found = [entry.waiter for line in self._lines.values() for entry in line.retries]
        return found + [entry.waiter for flows in self._flows.values() for flow in flows for entry in flow.entries]

    def ahead(self, model: str | None, priority: int, key: str | None) -> int:
        """How many of those who wait would go before a newcomer, were all requests equally large."""
        line = self._lines.get(model)
        if line is None:
            return 0
        count = len(line.retries)
        for level_priority, level in line.levels.items():
            if level_priority > priority:
                count += sum(len(flow.entries) for flow in level.flows.values())
            elif level_priority == priority:
                own = level.flows.get(key)
                turns = len(own.entries) if own is not None else 0
                others = sum(min(len(flow.entries), turns + 1) for flow in level.flows.values() if flow is not own)
                count += turns + others
        return count

    # -- coming and going

    def put(self, entry: Entry, now_s: float) -> Entry | None:
        """Let `entry` wait. Returns who has no place: None, another one that gave way, or `entry` itself.

        In a full queue somebody of the lowest priority gives way: the youngest request of the key that has most waiting
        there. A newcomer of that very priority displaces it only if its own key has fewer waiting even then.
        """
        loser: Entry | None = None
        if not entry.retry and self.length >= self.limit:
            loser = self._gives_way(entry)
            if loser is None:
                return entry
            self.remove(loser)
        line = self._lines.get(entry.line_name)
        if line is None:
            line = self._lines[entry.line_name] = Line(entry.line_name, self._clock, now_s)
        self._numbers += 1
        entry.number, entry.since_s, entry.line = self._numbers, now_s, line
        if entry.retry:
            line.retries[entry] = None
        else:
            entry.flow = flow = self._flow(line, entry)
            flow.entries[entry] = None
        line.length += 1
        self.length += 1
        return loser

    def remove(self, entry: Entry) -> None:
        """`entry` waits no more. Does nothing if it did not."""
        line, flow = entry.line, entry.flow
        if line is None:
            return
        entry.line = entry.flow = None
        if flow is None:
            del line.retries[entry]
        else:
            del flow.entries[entry]
            if not flow.entries:
                self._drop(line, flow, entry)
        self.length -= 1
        line.length -= 1
        if not line.length:
            del self._lines[entry.line_name]

    def let_through(self, now_s: float) -> list[Entry]:
        """Ask those whose turn it is until in every line somebody has to wait on. Returns who went on, in order."""
        gone: list[Entry] = []
        order = [(*line.rank(), number, line) for number, line in enumerate(self._lines.values())]
        heapify(order)
        while order:
            _, _, number, line = heappop(order)
            if not line.length:
                continue
            entry = line.head()
            if entry.waiter.take_turn():
                line.admissions.admitted(now_s)
                self._charge(line, entry)
                self.remove(entry)
                gone.append(entry)
                if line.length:
                    heappush(order, (*line.rank(), number, line))
        return gone

    # -- inside

    def _gives_way(self, newcomer: Entry) -> Entry | None:
        lowest = min(self._flows, default=newcomer.priority)
        flows: Collection[Flow] = self._flows.get(lowest, ())
        if not flows or newcomer.priority < lowest:
            return None
        largest = max(flows, key=lambda flow: (len(flow.entries), flow.youngest().number))
        if newcomer.priority == lowest and self._waiting_like(newcomer) + 1 >= len(largest.entries):
            return None
        return largest.youngest()

    def _waiting_like(self, newcomer: Entry) -> int:
        """How many wait in the flow that `newcomer` would join."""
        line = self._lines.get(newcomer.line_name)
        level = line.levels.get(newcomer.priority) if line is not None else None
        flow = level.flows.get(newcomer.key) if level is not None else None
        return len(flow.entries) if flow is not None else 0

    def _flow(self, line: Line, entry: Entry) -> Flow:
        level = line.levels.get(entry.priority)
        if level is None:
            level = line.levels[entry.priority] = Level()
        flow = level.flows.get(entry.key)
        if flow is None:
            flow = level.flows[entry.key] = Flow(max(level.clock, level.finished.pop(entry.key, 0.0)))
            self._flows.setdefault(entry.priority, {})[flow] = None
        return flow

    def _drop(self, line: Line, flow: Flow, entry: Entry) -> None:
        """The last of a flow has gone."""
        level = line.levels[entry.priority]
        del level.flows[entry.key]
        if not level.flows:
            del line.levels[entry.priority]
        elif flow.start > level.clock:
            level.finished[entry.key] = flow.start
        flows = self._flows[entry.priority]
        del flows[flow]
        if not flows:
            del self._flows[entry.priority]

    def _charge(self, line: Line, entry: Entry) -> None:
        line.start = max(line.start, self._clock)  # a line that could not move has saved nothing up
        self._clock = line.start
        line.start += entry.tokens
        flow = entry.flow
        if flow is not None:
            line.levels[entry.priority].clock = flow.start
            flow.start += entry.tokens
