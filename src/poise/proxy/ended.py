"""What is written down of a request that has ended: counted once, logged in one line, and its trail closed."""

from time import monotonic
from typing import TYPE_CHECKING, Final

from poise.core.request import Outcome
from poise.proxy.request_log import RequestLine

if TYPE_CHECKING:
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest
    from poise.proxy.routes import Route
    from poise.proxy.trail import Trail

_COMPLETED: Final = Outcome.COMPLETED


def note_end(
    path: "DataPath", request: "IncomingRequest", line: RequestLine, route: "Route", trail: "Trail | None"
) -> None:
    """Count the request that `line` tells of, and log it. Said once of every exchange."""
    if request.key_use is not None:
        used = (line.prompt_tokens, line.output_tokens) if line.attempts else (0, 0)
        request.key_use.end(request.charged_tokens, *used, monotonic())
    counters = path.counters
    counters.in_flight -= 1
    counters.requests[line.route, line.outcome] += 1
    counters.prompt_tokens += line.prompt_tokens or 0
    counters.cached_tokens += line.cached_tokens or 0
    counters.output_tokens += line.output_tokens or 0
    if route.timed and line.outcome is _COMPLETED:
        times = counters.times.of(line.model)
        times.end_to_end_s.observe(line.duration_s)
        tokens, first_output_s = line.output_tokens, line.first_output_s
        if line.stream and tokens is not None and tokens > 1 and first_output_s is not None:
            times.output_token_s.observe((line.duration_s - first_output_s) / (tokens - 1))
    if path.log is not None:
        path.log.write(line)
    if trail is not None:
        path.trails.ended(trail, line)
