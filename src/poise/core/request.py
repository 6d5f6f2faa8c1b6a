"""What routing may know about a request, and how it can end."""

from enum import StrEnum

import msgspec


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """The few facts of a request that placement needs. Made once per request, on the hot path.

    `session` is a 64-bit hash that names the conversation, None if the request gives no reason to keep it anywhere.
    `prompt_tokens` is an estimate from the prompt's bytes (4 bytes a token is the field's usual figure), 0 if the body
    is opaque.
    `output_tokens` is the caller's own limit, None if it gave none.
    `previous_response` is the id of the stored response that the request goes on from.
    """

    model: str | None = None
    stream: bool = False
    session: int | None = None
    prompt_tokens: int = 0
    output_tokens: int | None = None
    previous_response: str | None = None


class Outcome(StrEnum):
    """The one way a request ended, for counts, logs and the fleet."""

    COMPLETED = "completed"
    CALLER_ERROR = "caller_error"
    """The replica answered with a 4xx: the caller's fault, nobody else's."""
    CANCELLED = "cancelled"
    """The caller left before the end."""
    REFUSED = "refused"
    """The gateway answered itself: no replica, limits, a timeout before any was tried."""
    FAILED = "failed"
    """The replica broke, timed out, refused or ended its answer without finishing it."""
