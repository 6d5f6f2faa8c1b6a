"""How fast a line moves, and so how long a caller who is turned away should stay away. Pure: time is passed in."""

from collections import deque
from math import ceil

WINDOW_S = 60.0
"""Nothing older counts."""
ENOUGH_S = 10.0
ENOUGH_ADMISSIONS = 32
"""The rate is that of the shortest recent time that is `ENOUGH_S` long and saw so many requests let through: short
enough to follow replicas that become slower, long enough to see past requests that end in step."""
EXPECTED_WEIGHT = 32.0
"""As many requests let through the expected rate counts for: it bridges the time in which few have been seen."""
MAX_RETRY_AFTER_S = 300


class DrainRate:
    """Requests let through, in one-second slots, since a line began to form."""

    __slots__ = ("_since_s", "_slots")

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._slots: deque[tuple[int, int]] = deque()

    def admitted(self, now_s: float) -> None:
        """One request was let through."""
        second = int(now_s)
        slots = self._slots
        if slots and slots[-1][0] == second:
            slots[-1] = (second, slots[-1][1] + 1)
            return
        slots.append((second, 1))
        while slots[0][0] < now_s - WINDOW_S:
            slots.popleft()

    def per_s(self, now_s: float, expected_per_s: float | None) -> float | None:
        """Requests let through per second, None if nothing is known.

        `expected_per_s` is what the replicas should be able to take, as far as that is known.
        """
        count, since_s = 0, max(self._since_s, now_s - WINDOW_S)
        for second, admitted in reversed(self._slots):
            if now_s - second > WINDOW_S:
                break
            if count >= ENOUGH_ADMISSIONS and now_s - second > ENOUGH_S:
                since_s = max(since_s, second + 1.0)
                break
            count += admitted
        elapsed_s = now_s - since_s
        if expected_per_s:
            return (count + EXPECTED_WEIGHT) / (elapsed_s + EXPECTED_WEIGHT / expected_per_s)
        return count / elapsed_s if count and elapsed_s > 0 else None


def retry_after_s(ahead: int, rate_per_s: float | None) -> int:
    """Whole seconds until a request behind `ahead` others is let through, 1 to `MAX_RETRY_AFTER_S`; 1 if unknown."""
    if not rate_per_s:
        return 1
    return min(max(ceil((ahead + 1) / rate_per_s), 1), MAX_RETRY_AFTER_S)
