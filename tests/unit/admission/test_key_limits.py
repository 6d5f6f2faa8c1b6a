"""Token buckets against the plain rule they stand for, and what a key may use over requests, reloads and time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.admission.api_key import ApiKey, priority_of
from poise.admission.key_limits import KeyLimits, KeyUse, TokenBucket
from poise.core.errors import Refusal

STEPS = st.lists(st.tuples(st.floats(0, 5), st.floats(-3, 20)), max_size=40)


@given(per_s=st.floats(0.1, 50), size=st.floats(1, 50), steps=STEPS)
def test_a_bucket_lets_through_what_the_rate_allows_and_says_exactly_when(
    per_s: float, size: float, steps: list[tuple[float, float]]
) -> None:
    bucket, now_s, taken = TokenBucket(per_s, size, 0.0), 0.0, 0.0
    for pause_s, amount in steps:
        now_s += pause_s
        wait_s = bucket.wait_s(amount, now_s)
        assert wait_s >= 0
        if wait_s > 1e-6:
            assert bucket.wait_s(amount, now_s + 0.99 * wait_s) > 0, "not before"
            assert bucket.wait_s(amount, now_s + wait_s) < 1e-6, "and then"
        elif amount <= size:
            bucket.take(amount, now_s)
            taken += max(amount, 0.0)
        assert bucket.level(now_s) <= size
    given_back = -sum(min(amount, 0.0) for _, amount in steps)
    assert taken <= size + per_s * now_s + given_back + 1e-6


def test_more_than_a_bucket_holds_is_let_through_when_it_is_full_and_overdraws_it() -> None:
    bucket = TokenBucket(10.0, 100.0, 0.0)
    assert bucket.wait_s(500.0, 0.0) == 0
    bucket.take(500.0, 0.0)
    assert bucket.level(0.0) == -400
    assert bucket.wait_s(1.0, 0.0) == pytest.approx(40.1)


@pytest.mark.parametrize("rate", [0.25, 1.0, 5.0])
def test_requests_per_second_with_a_burst_of_one_seconds_worth(rate: float) -> None:
    use = KeyUse(ApiKey("a", requests_per_s=rate), 0.0)
    burst = max(int(rate), 1)
    assert [use.begin(1, 0.0) for _ in range(burst)] == [None] * burst
    refusal = use.begin(1, 0.0)
    assert refusal is not None and refusal.status == 429 and refusal.code == "key_requests"
    assert refusal.retry_after_s == max(1 / rate, 1)
    assert use.begin(1, float(refusal.retry_after_s)) is None
    assert (use.requests, use.in_flight, use.refusals) == (burst + 1, burst + 1, {"key_requests": 1})


def test_tokens_are_charged_at_entry_and_corrected_by_usage() -> None:
    use = KeyUse(ApiKey("a", tokens_per_min=600), 0.0)
    assert use.begin(500, 0.0) is None
    refusal = use.begin(500, 0.0)
    assert refusal is not None and (refusal.code, refusal.retry_after_s) == ("key_tokens", 40)
    use.end(500, 50, 50, 0.0)
    assert use.begin(500, 0.0) is None, "only 100 were used"
    use.end(500, 900, 300, 0.0)
    refusal = use.begin(100, 0.0)
    assert refusal is not None and refusal.retry_after_s == 80, "700 too many were used: -700 + 10 a second"
    assert (use.prompt_tokens, use.output_tokens) == (950, 350)


@pytest.mark.parametrize(("used", "left"), [((0, 0), 600), ((None, None), 100), ((100, None), 500)])
def test_what_is_not_known_stays_charged_and_what_was_never_sent_is_given_back(
    used: tuple[int | None, int | None], left: int
) -> None:
    use = KeyUse(ApiKey("a", tokens_per_min=600), 0.0)
    assert use.begin(500, 0.0) is None
    use.end(500, *used, 0.0)
    assert use.begin(left, 0.0) is None
    assert use.begin(1, 0.0) is not None


def test_concurrency_counts_those_that_have_not_ended() -> None:
    use = KeyUse(ApiKey("a", max_concurrency=2), 0.0)
    assert use.begin(1, 0.0) is use.begin(1, 0.0) is None
    refusal = use.begin(1, 0.0)
    assert refusal is not None and (refusal.code, refusal.retry_after_s) == ("key_concurrency", 1)
    use.end(1, None, None, 0.0)
    assert use.begin(1, 0.0) is None


def test_a_refused_request_uses_nothing_up() -> None:
    use = KeyUse(ApiKey("a", requests_per_s=1.0, tokens_per_min=60), 0.0)
    assert use.begin(60, 0.0) is None
    for _ in range(100):
        assert use.begin(60, 5.0) is not None
    assert use.begin(60, 60.0) is None


def test_a_reload_keeps_what_was_used_and_forgets_keys_that_left() -> None:
    limits = KeyLimits()
    limits.apply([ApiKey("a", requests_per_s=1.0), ApiKey("b")], 0.0)
    a = limits.of("a")
    assert a is not None and a.begin(1, 0.0) is None and a.begin(1, 0.0) is not None
    limits.apply([ApiKey("a", requests_per_s=2.0, max_concurrency=9), ApiKey("c")], 0.0)
    assert limits.of("a") is a and limits.of("b") is None
    assert [use.key.name for use in limits.all()] == ["a", "c"]
    refusal = a.begin(1, 0.0)
    assert refusal is not None, "an empty bucket is not filled by a reload"
    assert a.begin(1, 0.5) is None, "but fills up at the new rate"
    limits.apply([ApiKey("a")], 0.0)
    assert [a.begin(1, 0.5) for _ in range(50)] == [None] * 50
    limits.apply([], 0.0)
    a.end(1, 5, 5, 1.0)
    assert limits.all() == []


@given(header=st.binary(max_size=8), priority=st.none() | st.integers(-100, 100))
def test_any_header_is_a_priority_within_bounds_or_refused(header: bytes, priority: int | None) -> None:
    key = None if priority is None else ApiKey("a", priority=priority)
    got = priority_of(header, key)
    if not isinstance(got, Refusal):
        assert -100 <= got <= (10 if priority is None else priority)


@pytest.mark.parametrize(
    ("header", "priority", "got"),
    [(None, 5, 5), (b"3", 5, 3), (b"9", 5, 5), (b"-100", 5, -100), (None, -7, -7), (b"0", -7, -7),
     (None, None, 0), (b"50", None, 10), (b"-50", None, -10), (b" 4 ", None, 4)],
)  # fmt: skip
def test_the_keys_own_priority_is_the_default_and_the_most(
    header: bytes | None, priority: int | None, got: int
) -> None:
    assert priority_of(header, None if priority is None else ApiKey("a", priority=priority)) == got


def test_which_models_a_key_may_name() -> None:
    assert ApiKey("a").may_use("m") and ApiKey("a").may_use(None)
    limited = ApiKey("a", models=("m", "n"))
    assert [limited.may_use(model) for model in ("m", "n", "o", "*", None, "")] == [True, True] + [False] * 4
