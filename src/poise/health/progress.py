"""Whether an engine with requests to serve still generates: a page that says 200 does not say so. Pure."""

from poise.core.reading import LoadReading
from poise.health.settings import HealthSettings


class Progress:
    """Follows one replica's readings."""

    __slots__ = ("_settings", "_still_since_s", "_tokens", "stalled")

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._tokens: float | None = None
        self._still_since_s = 0.0
        self.stalled = False
        """Whether requests were there for `stall_s` and no token was read or written."""

    def note(self, reading: LoadReading, now_s: float, at_work_s: float | None) -> None:
        """A scrape gave `reading`; `at_work_s` is when the replica was last seen to produce output, None if never.

        Prompt tokens count too: a replica that only embeds generates none.
        """
        tokens = _total(reading.generation_tokens, reading.prompt_tokens)
        busy = bool(reading.running or reading.waiting)
        if tokens is None or tokens != self._tokens or not busy:
            self._tokens = tokens
            self._still_since_s = now_s
            self.stalled = False
            return
        still_since_s = self._still_since_s if at_work_s is None else max(self._still_since_s, at_work_s)
        self.stalled = now_s - still_since_s >= self._settings.stall_s


def _total(generated: float | None, read: float | None) -> float | None:
    if generated is None and read is None:
        return None
    return (generated or 0.0) + (read or 0.0)
