"""What is judged how: settings of breakers, probes, progress and the slow start; every duration in seconds."""

from dataclasses import dataclass, fields

from poise.core.errors import ConfigError

LEAST_WORK_COUNTS_S = 1.0
"""Streams that flow are not reported more often than twice a second."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """A replica is left alone for `open_s` after `failures` failed requests within `window_s`."""

    failures: int = 5
    window_s: float = 30.0
    open_s: float = 10.0

    def __post_init__(self) -> None:
        _check_above_0("breaker", self)


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Each server's `/health` is asked every `interval_s`; an answer after `timeout_s` has been missed.

    `failures` misses in a row take a replica out that shows no work. So do `stall_s` of requests running there, none of
    which gets a token. One that has recovered gets its full share back over `slow_start_s`; 0 gives it at once.
    """

    interval_s: float = 2.0
    timeout_s: float = 2.0
    failures: int = 3
    stall_s: float = 15.0
    slow_start_s: float = 10.0

    def __post_init__(self) -> None:
        _check_above_0("health", self, may_be_0=("slow_start_s",))

    @property
    def work_counts_s(self) -> float:
        """How long after output was seen a replica is taken to be at work, whatever its probes say."""
        return max(LEAST_WORK_COUNTS_S, self.interval_s + self.timeout_s)


def _check_above_0(section: str, settings: BreakerSettings | HealthSettings, may_be_0: tuple[str, ...] = ()) -> None:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if not (value > 0 or (value == 0 and field.name in may_be_0)):
            raise ConfigError(f"{section}.{field.name} is {value}", hint="counts and durations are above 0")
