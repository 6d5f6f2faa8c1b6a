"""One JSON line for each request, written in batches so that a line costs the hot path one append."""

import msgspec

from poise.core.clock import wall_time_s
from poise.proxy.log_file import LogFile


class RequestLine(msgspec.Struct, gc=False):
    """What is logged of one request. Times in seconds; `at` is wall time at its end (Unix seconds).

    `queue_s` is the time before it was sent anywhere, None if it never was. Token counts are the replica's own.
    `model` is the one that a replica was asked for, `asked_model` the caller's name for it where that is another.
    """

    request_id: str
    route: str
    outcome: str
    status: int
    replica: str | None
    reason: str | None
    attempts: int
    model: str | None
    stream: bool
    key: str | None
    queue_s: float | None
    first_output_s: float | None
    duration_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    error: str | None = None
    asked_model: str | None = None
    at: float = 0.0


class RequestLog:
    """Collects lines and hands them to a file (`-` is standard error) when `flush` is called.

    A disk that fails loses log lines, never a request. Raises `OSError` if the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._file = LogFile(path)
        self._lines: list[RequestLine] = []
        self._encoder = msgspec.json.Encoder()
        self.write = self._lines.append
        self.reopen = self._file.reopen
        """For whoever rotates the file: go on in one with the same name."""

    @property
    def error(self) -> OSError | None:
        """The first failure of the disk, None if there was none."""
        return self._file.error

    @property
    def lost_lines(self) -> int:
        """Lines that were not written."""
        return self._file.lost_lines

    def flush(self) -> None:
        """Have what was collected written."""
        if not self._lines:
            return
        now = wall_time_s()
        for line in self._lines:
            line.at = now
        block = self._encoder.encode_lines(self._lines)
        self._lines.clear()
        self._file.append(block)

    def close(self) -> None:
        """Write what is left and close the file."""
        self.flush()
        self._file.close()
