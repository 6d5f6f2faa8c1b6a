"""The two clocks. Only drivers read them; decisions are told the time."""

import time

monotonic_s = time.monotonic
"""Seconds that never go back, from an arbitrary start."""


def wall_time_s() -> float:
    """Unix time in seconds: for logs and HTTP dates, never for measuring."""
    return time.time()  # noqa: TID251
