"""What was dispatched to a replica since its last poll: added to the reading until a newer reading can have seen it."""


class SinceLastPoll:
    """Requests and KV tokens dispatched since the last *applied* scrape began.

    A reading may or may not include what was dispatched while it was on its way, so only what was dispatched before the
    scrape began is dropped when its reading arrives: a request is counted twice for one interval rather than never.
    Invariant: `requests` and `tokens` are the sums over unsettled tickets whose epoch is after the last applied one.
    """

    __slots__ = ("_before", "_before_tokens", "applied_epoch", "epoch", "requests", "tokens")

    def __init__(self) -> None:
        self.epoch = 1
        self.applied_epoch = 0
        self.requests = 0
        self.tokens = 0
        self._before = 0
        self._before_tokens = 0

    def charge(self, tokens: int) -> int:
        """Add one request; returns the epoch by which it is released."""
        self.requests += 1
        self.tokens += tokens
        return self.epoch

    def release_request(self, epoch: int) -> None:
        """The request has had its first output, or has ended: it no longer waits."""
        if epoch > self.applied_epoch:
            self.requests -= 1
            if epoch < self.epoch:
                self._before -= 1

    def release_tokens(self, epoch: int, tokens: int) -> None:
        """The request has ended: its KV blocks are free."""
        if epoch > self.applied_epoch:
            self.tokens -= tokens
            if epoch < self.epoch:
                self._before_tokens -= tokens

    def scrape_began(self) -> None:
        """What is dispatched from now on may be missing from the reading that comes."""
        self.epoch += 1
        self._before = self.requests
        self._before_tokens = self.tokens

    def scrape_applied(self) -> None:
        """The reading of the last begun scrape is in use: what was dispatched before it began is part of it."""
        self.applied_epoch = self.epoch - 1
        self.requests -= self._before
        self.tokens -= self._before_tokens
        self._before = 0
        self._before_tokens = 0
