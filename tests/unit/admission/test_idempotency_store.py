"""The store of executions: what a second request gets, and that nothing grows without bound."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from poise.admission.idempotency import (
    ENTRY_BYTES,
    NOT_KEPT,
    OTHER_BODY,
    STREAM_RUNS,
    Execution,
    IdempotencySettings,
    IdempotencyStore,
    KeptAnswer,
)
from poise.core.errors import Refusal


def answer(size: int = 10, status: int = 200) -> KeptAnswer:
    return KeptAnswer(status, (b"content-type", b": ", b"text/plain", b"\r\n"), b"x" * size, "r1", "least load")


def store(max_bytes: int = 1 << 20, max_age_s: float = 100.0) -> IdempotencyStore:
    return IdempotencyStore(IdempotencySettings(max_bytes, max_age_s))


def test_while_it_runs_the_same_request_waits_for_it_and_another_is_refused() -> None:
    kept = store()
    assert kept.find(b"k", b"body", 0.0) is None
    first = kept.begin(b"k", b"body", streams=False)
    assert kept.find(b"k", b"body", 1.0) is first and first.ended_at_s is None
    assert kept.find(b"k", b"other", 1.0) is OTHER_BODY
    assert kept.find(b"l", b"body", 1.0) is None


def test_afterwards_its_answer_is_given_again_until_it_is_too_old() -> None:
    kept, given = store(), answer()
    first = kept.begin(b"k", b"body", streams=False)
    kept.end(first, given, 50.0)
    found = kept.find(b"k", b"body", 149.0)
    assert isinstance(found, Execution) and found.answer is given
    assert kept.find(b"k", b"other", 149.0) is OTHER_BODY
    assert kept.find(b"k", b"body", 150.0) is None
    assert (len(kept), kept.kept_bytes) == (0, 0)


def test_what_failed_is_forgotten() -> None:
    kept = store()
    kept.forget(kept.begin(b"k", b"body", streams=False))
    assert kept.find(b"k", b"other", 0.0) is None and len(kept) == 0


def test_a_stream_is_not_carried_out_twice() -> None:
    kept = store()
    first = kept.begin(b"k", b"body", streams=True)
    assert kept.find(b"k", b"body", 0.0) is STREAM_RUNS
    kept.end(first, None, 1.0)
    assert kept.find(b"k", b"body", 2.0) is NOT_KEPT
    assert kept.find(b"k", b"body", 101.0) is None


def test_an_answer_that_is_too_long_is_not_kept_but_that_it_was_given_is() -> None:
    kept = store(max_bytes=ENTRY_BYTES + 100)
    kept.end(kept.begin(b"k", b"body", streams=False), answer(200), 0.0)
    assert kept.find(b"k", b"body", 0.0) is NOT_KEPT


def test_the_oldest_make_room() -> None:
    kept = store(max_bytes=3 * (ENTRY_BYTES + 200))
    for number in range(5):
        kept.end(kept.begin(b"%d" % number, b"", streams=False), answer(150), float(number))
    assert [kept.find(b"%d" % number, b"", 5.0) is not None for number in range(5)] == [False, False, True, True, True]
    kept.apply(IdempotencySettings(ENTRY_BYTES + 200, 100.0))
    assert [kept.find(b"%d" % number, b"", 5.0) is not None for number in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("status", "final"),
    [(200, True), (204, True), (400, True), (404, True), (422, True)]
    + [(status, False) for status in (408, 409, 425, 429, 500, 502, 503, 504)],
)
def test_what_may_be_otherwise_a_moment_later_is_not_final(status: int, final: bool) -> None:
    assert answer(status=status).is_final is final


class Uses(RuleBasedStateMachine):
    """Any order of requests, ends and waits: one execution a key at a time, and bytes that add up."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.store = store(max_bytes=4 * ENTRY_BYTES, max_age_s=10.0)
        self.running: dict[bytes, Execution] = {}

    @rule(
        key=st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]),
        body=st.sampled_from([b"1", b"2"]),
        streams=st.booleans(),
    )
    def request(self, key: bytes, body: bytes, streams: bool) -> None:
        found = self.store.find(key, body, self.now_s)
        if key in self.running:
            first = self.running[key]
            wanted = OTHER_BODY if first.fingerprint != body else STREAM_RUNS if first.streams else first
            assert found is wanted
        elif found is None:
            self.running[key] = self.store.begin(key, body, streams=streams)
        elif isinstance(found, Refusal):
            assert found in (OTHER_BODY, NOT_KEPT)
        else:
            assert found.fingerprint == body and found.answer is not None
            assert found.ended_at_s is not None and self.now_s - found.ended_at_s < 10.0

    @precondition(lambda self: self.running)
    @rule(data=st.data(), size=st.integers(0, 5 * ENTRY_BYTES), fails=st.booleans())
    def end(self, data: st.DataObject, size: int, fails: bool) -> None:
        execution = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        if fails:
            self.store.forget(execution)
        else:
            self.store.end(execution, None if execution.streams else answer(size), self.now_s)

    @rule(seconds=st.floats(0, 6))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.store.expire(self.now_s)

    @invariant()
    def adds_up(self) -> None:
        ended = self.store._ended.values()
        assert self.store.kept_bytes == sum(execution.kept_bytes for execution in ended) <= 4 * ENTRY_BYTES
        assert len(self.store) == len(self.running) + len(ended)


TestUses = Uses.TestCase
