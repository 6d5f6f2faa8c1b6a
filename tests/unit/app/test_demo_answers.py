"""The demo's figures, from answers whose sums are known."""

import pytest

from poise.app.demo.answers import WINDOW_S, Answers
from poise.bench.client import TimedAnswer


def answer(first_output_s: float | None = 1.0, *, cached: int | None = 0, error: str | None = None) -> TimedAnswer:
    return TimedAnswer(200, "", {}, first_output_s, 3.0, 100, cached, 10, error)


def test_nothing_is_known_of_nothing() -> None:
    summary = Answers(0.0).summary(10.0)
    assert (summary.completed, summary.failed, summary.completed_per_s) == (0, 0, 0.0)
    assert {summary.first_output_p50_s, summary.first_output_p99_s, summary.cached_ratio} == {None}


def test_figures_of_answers_within_the_window() -> None:
    answers = Answers(0.0)
    for number in range(101):
        answers.add(answer(number / 100, cached=number % 2 * 100), 5.0)
    summary = answers.summary(10.0)
    assert summary.completed_per_s == pytest.approx(10.1), "101 answers in the 10 s since the start"
    assert (summary.first_output_p50_s, summary.first_output_p99_s) == (pytest.approx(0.5), pytest.approx(0.99))
    assert summary.end_to_end_p50_s == pytest.approx(3.0)
    assert summary.cached_ratio == pytest.approx(50 / 101)


def test_what_is_older_than_the_window_counts_but_is_no_longer_a_rate() -> None:
    answers = Answers(0.0)
    answers.add(answer(9.0), 10.0)
    answers.add(answer(1.0), 11.0)
    summary = answers.summary(10.5 + WINDOW_S)
    assert (summary.completed, summary.first_output_p50_s) == (2, 1.0)
    assert summary.completed_per_s == pytest.approx(1 / WINDOW_S)


def test_failures_are_counted_apart() -> None:
    answers = Answers(0.0)
    answers.add(answer(), 1.0)
    answers.add(answer(error="first"), 1.0)
    answers.add(answer(99.0, error="second"), 1.0)
    summary = answers.summary(2.0)
    assert (summary.completed, summary.failed, summary.last_error) == (1, 2, "second")
    assert summary.first_output_p99_s == 1.0
