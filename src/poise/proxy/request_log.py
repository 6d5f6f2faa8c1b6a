"""One JSON line for each request, written in batches so that a line costs the hot path one append."""

import sys
from typing import BinaryIO

import msgspec

from poise.core.clock import wall_time_s


class RequestLine(msgspec.Struct, gc=False):
    """What is logged of one request. Times in seconds; `at` is wall time at its end (Unix seconds)."""

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
    first_output_s: float | None
    duration_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    error: str | None = None
    at: float = 0.0


class RequestLog:
    """Collects lines and writes them to a file (`-` is standard error) when `flush` is called.

    A disk that fails loses log lines, never a request: the first failure is kept in `error`.
    """

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = sys.stderr.buffer if path == "-" else open(path, "ab", buffering=0)  # noqa: SIM115
        self._owned = path != "-"
        self._lines: list[RequestLine] = []
        self._encoder = msgspec.json.Encoder()
        self.write = self._lines.append
        self.error: OSError | None = None

    def flush(self) -> None:
        """Write what was collected."""
        if not self._lines:
            return
        now = wall_time_s()
        for line in self._lines:
            line.at = now
        block = self._encoder.encode_lines(self._lines)
        self._lines.clear()
        try:
            self._file.write(block)
            self._file.flush()
        except OSError as error:
            self.error = self.error or error

    def close(self) -> None:
        """Write what is left and close the file."""
        self.flush()
        if self._owned:
            self._file.close()
