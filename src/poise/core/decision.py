"""What a policy answers: send it there, wait, or refuse."""

from collections.abc import Sequence

import msgspec


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send the request to the replica in `slot`.

    `reason` is one lower-case word or two for logs and the `x-poise-reason` header.
    `terms` are (slot, cost) of the candidates that the rule compared, lower is better; empty if it compared none.
    """

    slot: int
    reason: str
    terms: Sequence[tuple[int, float]] = ()


class Wait(msgspec.Struct, frozen=True, gc=False):
    """No replica may take the request now, but some could later: ask again at `until_s` or when the fleet changes."""

    until_s: float
    reason: str


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """No replica can take the request, and waiting would not help."""

    reason: str


Decision = Send | Wait | Refuse
