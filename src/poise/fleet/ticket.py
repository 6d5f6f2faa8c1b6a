"""A request's charge on a replica: taken at dispatch, settled exactly once however the request ends."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poise.fleet.replica import Replica


class Ticket:
    """What one dispatched request is charged. Only `Fleet` changes it.

    It holds the replica itself, not its name or slot, so that a replica that left and came back is never credited
    with what its predecessor was charged.
    """

    __slots__ = (
        "dispatched_at_s", "epoch", "first_output_at_s", "prefill_tokens", "replica", "settled", "tokens", "trial",
    )  # fmt: skip

    def __init__(
        self, replica: "Replica", tokens: int, prefill_tokens: int, epoch: int, trial: int, now_s: float
    ) -> None:
        self.replica = replica
        self.tokens = tokens
        """KV tokens that the request is expected to hold: prompt and expected output. Released at the end."""
        self.prefill_tokens = prefill_tokens
        """Prompt tokens that still have to be computed. Released at the first output."""
        self.epoch = epoch
        """Scrape epoch of the replica at dispatch: see `SinceLastPoll`."""
        self.trial = trial
        """What the replica's breaker wants to know of the request: see `Breaker.sent`."""
        self.dispatched_at_s = now_s
        self.first_output_at_s: float | None = None
        self.settled = False
