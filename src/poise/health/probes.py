"""What a replica's answers to probes say of it. Pure: the time is passed in, and when it was last seen at work."""

from typing import Final

from poise.health.settings import HealthSettings


class Probe:
    """How one probe ended."""

    WELL: Final = 0
    """The server answered, and did not say that it is ill."""
    MISSED: Final = 1
    """It did not answer in time, broke off, or answered with a 5xx."""
    REFUSED: Final = 2
    """Nothing listens there."""


class Verdict:
    """What the probes so far say."""

    WELL: Final = 0
    """Or never probed."""
    FAILING: Final = 1
    """So many were missed in a row, and nothing shows that the replica is only busy."""
    DEAD: Final = 2
    """Nothing listens there, which cannot be for being busy."""


class ProbeHistory:
    """The probes of one replica since the last that was answered."""

    __slots__ = ("_settings", "answered", "missed", "verdict")

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self.answered = False
        """Whether one ever was: only then can the next be expected to say that a dead replica lives."""
        self.missed = 0
        """Probes in a row that were not answered."""
        self.verdict: int = Verdict.WELL

    def note(self, probe: int, now_s: float, at_work_s: float | None) -> None:
        """A probe has ended. `at_work_s` is when the replica was last seen to produce output, None if never."""
        if probe == Probe.WELL:
            self.answered = True
            self.missed = 0
            self.verdict = Verdict.WELL
            return
        self.missed += 1
        if probe == Probe.REFUSED:
            self.verdict = Verdict.DEAD
        elif self.verdict != Verdict.DEAD:
            busy = at_work_s is not None and now_s - at_work_s <= self._settings.work_counts_s
            failing = self.missed >= self._settings.failures and not busy
            self.verdict = Verdict.FAILING if failing else Verdict.WELL
