"""What the demo's callers saw lately, summed up."""

from collections import deque
from dataclasses import dataclass
from statistics import quantiles

from poise.bench.client import TimedAnswer

WINDOW_S = 30.0
"""Rates, times and shares are of the answers that ended within this time."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts since the start; rate, times and share over the last `WINDOW_S`, None if there is nothing to tell."""

    completed: int
    failed: int
    last_error: str | None
    completed_per_s: float
    first_output_p50_s: float | None
    first_output_p99_s: float | None
    end_to_end_p50_s: float | None
    cached_ratio: float | None


class Answers:
    """Answers from `started_at_s` on. The time is passed in."""

    def __init__(self, started_at_s: float) -> None:
        self._started_at_s = started_at_s
        self._recent: deque[tuple[float, TimedAnswer]] = deque()
        self._completed = 0
        self._failed = 0
        self._last_error: str | None = None

    def add(self, answer: TimedAnswer, now_s: float) -> None:
        """`answer` has ended."""
        if answer.error is None:
            self._completed += 1
            self._recent.append((now_s, answer))
        else:
            self._failed += 1
            self._last_error = answer.error

    def summary(self, now_s: float) -> Summary:
        """What was seen up to now."""
        while self._recent and now_s - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        answers = [answer for _, answer in self._recent]
        first_outputs_s = [answer.first_output_s for answer in answers if answer.first_output_s is not None]
        prompt_tokens = sum(answer.prompt_tokens or 0 for answer in answers)
        cached_tokens = sum(answer.cached_tokens or 0 for answer in answers)
        return Summary(
            completed=self._completed,
            failed=self._failed,
            last_error=self._last_error,
            completed_per_s=len(answers) / max(1.0, min(WINDOW_S, now_s - self._started_at_s)),
            first_output_p50_s=_percentile(first_outputs_s, 50),
            first_output_p99_s=_percentile(first_outputs_s, 99),
            end_to_end_p50_s=_percentile([answer.end_to_end_s for answer in answers], 50),
            cached_ratio=cached_tokens / prompt_tokens if prompt_tokens else None,
        )


def _percentile(values: list[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]
