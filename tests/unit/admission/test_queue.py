"""The central queue against a plain list of who waits, through any order of events."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from poise.admission.queue import CentralQueue, Entry
from poise.core.errors import Refusal

MODELS = ("m", "n", None)
KEYS = ("a", "b", None)


@dataclass(eq=False)
class Caller:
    """Goes on when its turn comes and `model` has room left, in `room`."""

    room: Counter[str | None]
    model: str | None
    asked: list["Caller"] = field(default_factory=list)

    def take_turn(self) -> bool:
        self.asked.append(self)
        self.room[self.model] -= 1
        return self.room[self.model] >= 0

    def turn_away(self, refusal: Refusal) -> None:
        raise AssertionError("the queue turns nobody away itself")


def entry_of(
    model: str | None = "m", priority: int = 0, key: str | None = None, tokens: int = 100, retry: bool = False,
    room: Counter[str | None] | None = None, asked: list[Caller] | None = None,
) -> Entry:  # fmt: skip
    caller = Caller(Counter() if room is None else room, model, [] if asked is None else asked)
    return Entry(caller, model=model, priority=priority, key=key, tokens=tokens, retry=retry)


def kept(queue: CentralQueue) -> list[object]:
    """All that the queue keeps besides numbers; empty once nobody waits."""
    return [*queue._lines, *queue._flows]


class QueueMachine(RuleBasedStateMachine):
    """Every rule does the same to the queue and to the list `waiting`, in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 6
        self.queue = CentralQueue(self.limit)
        self.waiting: list[Entry] = []
        self.room: Counter[str | None] = Counter()
        self.asked: list[Caller] = []

    def newcomers(self) -> list[Entry]:
        return [entry for entry in self.waiting if not entry.retry]

    @rule(
        model=st.sampled_from(MODELS), priority=st.integers(-1, 1), key=st.sampled_from(KEYS),
        tokens=st.integers(0, 500), retry=st.booleans(),
    )  # fmt: skip
    def put(self, model: str | None, priority: int, key: str | None, tokens: int, retry: bool) -> None:
        entry = entry_of(model, priority, key, tokens, retry, self.room, self.asked)
        before = len(self.waiting)
        loser = self.queue.put(entry, 0.0)
        if loser is not entry:
            self.waiting.append(entry)
        if retry or before < self.limit:
            assert loser is None
        elif loser is not entry:
            assert loser is not None and not loser.retry
            lowest = min(other.priority for other in self.newcomers() if other is not entry)
            assert loser.priority == lowest <= priority
            like_loser = [other for other in self.newcomers() if self.flow(other) == self.flow(loser)]
            assert like_loser[-1] is loser, "the youngest of its key gives way"
            if priority == lowest:
                assert self.count(loser) > self.count(entry), "only one whose key has more gives way to an equal"
            self.waiting.remove(loser)
        else:
            lower = [other for other in self.newcomers() if other.priority < priority]
            assert not lower, "somebody lower should have given way"

    def flow(self, entry: Entry) -> tuple[object, ...]:
        return (entry.model, entry.priority, entry.key)

    def count(self, entry: Entry) -> int:
        return sum(self.flow(other) == self.flow(entry) for other in self.newcomers())

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(0, 1000))
    def leave(self, pick: int) -> None:
        entry = self.waiting.pop(pick % len(self.waiting))
        self.queue.remove(entry)
        self.queue.remove(entry)

    @rule(room=st.dictionaries(st.sampled_from(MODELS), st.integers(0, 4)))
    def let_through(self, room: dict[str | None, int]) -> None:
        self.room.clear()
        self.room.update(room)
        self.asked.clear()
        models = {entry.model for entry in self.waiting}
        gone = self.queue.let_through(1.0)
        for model in models:
            went = [entry for entry in gone if entry.model == model]
            line = [entry for entry in self.waiting if entry.model == model]
            assert len(went) == min(room.get(model, 0), len(line)), "whoever finds room goes on, and nobody else"
            self.check_order(went, line)
        for entry in gone:
            self.waiting.remove(entry)
        refused = Counter(caller.model for caller in self.asked) - Counter(entry.model for entry in gone)
        assert max(refused.values(), default=0) <= 1, "who has no room stops the line"

    def check_order(self, went: list[Entry], line: list[Entry]) -> None:
        assert [(not entry.retry, -entry.priority if not entry.retry else 0) for entry in went] == sorted(
            (not entry.retry, -entry.priority if not entry.retry else 0) for entry in went
        )
        for flow in {(entry.retry, *self.flow(entry)) for entry in went}:
            same = [entry for entry in line if (entry.retry, *self.flow(entry)) == flow]
            ordered = [entry for entry in went if (entry.retry, *self.flow(entry)) == flow]
            assert ordered == same[: len(ordered)], "first come, first served inside a key"
        left = [entry for entry in line if entry not in went and not entry.retry]
        for entry in went:
            assert all(other.priority <= entry.priority or entry.retry for other in left)

    @invariant()
    def the_same_wait(self) -> None:
        assert {id(waiter) for waiter in self.queue.waiters()} == {id(entry.waiter) for entry in self.waiting}
        assert self.queue.length == len(self.waiting)
        assert self.queue.lengths() == Counter(entry.priority for entry in self.waiting)
        assert len(self.newcomers()) <= self.limit
        for model in MODELS:
            line = self.queue.line(model)
            assert (line.length if line else 0) == sum(entry.model == model for entry in self.waiting)

    @invariant()
    def nothing_is_kept_of_those_who_left(self) -> None:
        assert set(self.queue._lines) == {entry.model for entry in self.waiting}
        assert set(self.queue._flows) == {entry.priority for entry in self.newcomers()}
        for line in self.queue._lines.values():
            for level in line.levels.values():
                assert level.flows and all(flow.entries for flow in level.flows.values())
                assert len(level.finished) <= len(KEYS)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def serve(queue: CentralQueue, room: Counter[str | None], model: str | None = "m") -> Entry:
    """The one who goes on when there is room for one."""
    room.clear()
    room[model] = 1
    (entry,) = queue.let_through(0.0)
    return entry


@pytest.mark.parametrize("quiet_tokens", [10, 100, 1000])
def test_keys_share_by_tokens_whatever_the_size_of_their_requests(quiet_tokens: int) -> None:
    queue, room = CentralQueue(10_000), Counter[str | None]()
    for _ in range(2000):
        queue.put(entry_of(key="flood", tokens=100, room=room), 0.0)
    served: Counter[str | None] = Counter()
    for _ in range(400):
        if not any(entry.key == "quiet" for entry in entries_of(queue)):
            queue.put(entry_of(key="quiet", tokens=quiet_tokens, room=room), 0.0)
        entry = serve(queue, room)
        served[entry.key] += entry.tokens
        assert abs(served["flood"] - served["quiet"]) <= 100 + quiet_tokens, "never ahead by more than one request each"


def entries_of(queue: CentralQueue) -> list[Entry]:
    return [entry for flows in queue._flows.values() for flow in flows for entry in flow.entries]


def test_a_key_gains_nothing_by_coming_and_going() -> None:
    queue, room = CentralQueue(1000), Counter[str | None]()
    for _ in range(100):
        queue.put(entry_of(key="steady", room=room), 0.0)
    served: Counter[str | None] = Counter()
    for _ in range(60):
        extra = entry_of(key="jumpy", room=room)
        queue.put(extra, 0.0)
        served[serve(queue, room).key] += 1
        queue.remove(extra)
    assert served["steady"] >= served["jumpy"] - 1


def test_those_who_hang_up_are_not_charged() -> None:
    queue, room = CentralQueue(1000), Counter[str | None]()
    leaving = [entry_of(key="a", tokens=10_000, room=room) for _ in range(50)]
    for entry in [*leaving, *(entry_of(key="a", room=room) for _ in range(10))]:
        queue.put(entry, 0.0)
    for _ in range(10):
        queue.put(entry_of(key="b", room=room), 0.0)
    for entry in leaving:
        queue.remove(entry)
    assert Counter(serve(queue, room).key for _ in range(10)) == {"a": 5, "b": 5}


def test_lines_of_two_models_on_the_same_replicas_share_by_tokens() -> None:
    queue, room = CentralQueue(1000), Counter[str | None]()

    class OneRoom(Caller):
        def take_turn(self) -> bool:
            self.room["any"] -= 1
            return self.room["any"] >= 0

    for model, count in (("m", 300), ("n", 50)):
        for _ in range(count):
            queue.put(Entry(OneRoom(room, model), model=model, priority=0, key=None, tokens=100), 0.0)
    served: Counter[str | None] = Counter()
    for _ in range(60):
        served[serve(queue, room, "any").model] += 1
    assert served == {"m": 30, "n": 30}


def test_a_line_that_could_not_move_has_saved_nothing_up() -> None:
    queue, room = CentralQueue(1000), Counter[str | None]()

    class Shared(Caller):
        def take_turn(self) -> bool:
            if self.room["stuck"] and self.model == "n":
                return False
            self.room["any"] -= 1
            return self.room["any"] >= 0

    for _ in range(200):
        for model in ("m", "n"):
            queue.put(Entry(Shared(room, model), model=model, priority=0, key=None, tokens=100), 0.0)
    for _ in range(100):
        room.update({"any": 1, "stuck": 1})
        (entry,) = queue.let_through(0.0)
        assert entry.model == "m"
        room.clear()
    served = Counter(serve(queue, room, "any").model for _ in range(20))
    assert served["n"] <= 11


def test_one_who_is_refused_in_its_turn_makes_room_for_the_next() -> None:
    queue, room = CentralQueue(10), Counter[str | None]({"m": 1})

    class Refused(Caller):
        def take_turn(self) -> bool:
            queue.remove(refused)
            queue.put(late, 0.0)
            return True

    refused = Entry(Refused(room, "m"), model="m", priority=5, key=None, tokens=1)
    late, next_one = entry_of(room=room), entry_of(room=room)
    queue.put(refused, 0.0)
    queue.put(next_one, 0.0)
    assert queue.let_through(0.0) == [refused, next_one]
    assert queue.waiters() == [late.waiter]
    room["m"] = 1
    assert queue.let_through(0.0) == [late]
    assert queue.length == 0 and kept(queue) == []


@pytest.mark.parametrize(
    ("priority", "key", "ahead"),
    [(0, "a", 1 + 2 + 4 + 2), (0, "b", 1 + 2 + 2 + 3), (0, "new", 1 + 2 + 1 + 1), (1, "a", 1 + 1), (-1, "a", 9)],
)
def test_how_many_would_go_before_a_newcomer(priority: int, key: str, ahead: int) -> None:
    queue = CentralQueue(100)
    queue.put(entry_of(retry=True), 0.0)
    for entry_key, entry_priority, count in (("a", 0, 4), ("b", 0, 2), ("c", 1, 2)):
        for _ in range(count):
            queue.put(entry_of(key=entry_key, priority=entry_priority), 0.0)
    assert queue.ahead("m", priority, key) == ahead
    assert queue.ahead("another", priority, key) == 0
