"""What each API key may use, and what it has used. Pure: time is passed in. A reload of the file loses none of it."""

from collections.abc import Iterable
from math import ceil

from poise.admission.api_key import ApiKey
from poise.core.errors import Refusal

MINUTE_S = 60.0


class TokenBucket:
    """An allowance that fills up at `per_s` to `size`. It may be overdrawn by what turns out to cost more."""

    __slots__ = ("_at_s", "_level", "per_s", "size")

    def __init__(self, per_s: float, size: float, now_s: float) -> None:
        self.per_s = per_s
        self.size = size
        self._level = size
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """What may be taken now; below 0 after an overdraft."""
        return min(self._level + (now_s - self._at_s) * self.per_s, self.size)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until `amount` may be taken, 0 if it may be now. More than `size` may be taken when it is full."""
        return max(min(amount, self.size) - self.level(now_s), 0.0) / self.per_s

    def take(self, amount: float, now_s: float) -> None:
        """Take `amount`, or give it back if it is negative."""
        self._level = min(self.level(now_s) - amount, self.size)
        self._at_s = now_s

    def resize(self, per_s: float, size: float, now_s: float) -> None:
        """From now on fill up at `per_s` to `size`; what is in it stays as far as it fits."""
        self._level, self._at_s = min(self.level(now_s), size), now_s
        self.per_s, self.size = per_s, size


class KeyUse:
    """One key's limits, and what was used of them. `refusals` are by error code."""

    __slots__ = (
        "_requests_allowed", "_tokens_allowed", "in_flight", "key", "output_tokens", "prompt_tokens", "refusals",
        "requests",
    )  # fmt: skip

    def __init__(self, key: ApiKey, now_s: float) -> None:
        self._requests_allowed: TokenBucket | None = None
        self._tokens_allowed: TokenBucket | None = None
        self.requests = 0
        self.in_flight = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.refusals: dict[str, int] = {}
        self.apply(key, now_s)

    def apply(self, key: ApiKey, now_s: float) -> None:
        """The limits are those of `key` from now on."""
        self.key = key
        rate, tokens = key.requests_per_s, key.tokens_per_min
        self._requests_allowed = _bucket(self._requests_allowed, rate, max(rate or 0.0, 1.0), now_s)
        per_s = None if tokens is None else tokens / MINUTE_S
        self._tokens_allowed = _bucket(self._tokens_allowed, per_s, tokens or 0.0, now_s)

    def begin(self, tokens: int, now_s: float) -> Refusal | None:
        """One request with an estimated `tokens` wants in. It is counted, and charged, unless it is refused."""
        key = self.key
        if key.max_concurrency is not None and self.in_flight >= key.max_concurrency:
            limit = f"{key.max_concurrency} at once"
            return self._refused("key_concurrency", f"this API key has as many requests running as it may: {limit}", 0)
        requests, allowed = self._requests_allowed, self._tokens_allowed
        if requests is not None and (wait_s := requests.wait_s(1.0, now_s)):
            rate = f"{key.requests_per_s:g} requests/s"
            return self._refused("key_requests", f"this API key sends more than it may: {rate}", wait_s)
        if allowed is not None and (wait_s := allowed.wait_s(tokens, now_s)):
            rate = f"{key.tokens_per_min} tokens/min"
            return self._refused("key_tokens", f"this API key uses more than it may: {rate}", wait_s)
        if requests is not None:
            requests.take(1.0, now_s)
        if allowed is not None:
            allowed.take(tokens, now_s)
        self.requests += 1
        self.in_flight += 1
        return None

    def end(self, charged_tokens: int, prompt_tokens: int | None, output_tokens: int | None, now_s: float) -> None:
        """A request that was let in has ended, and has used these tokens. Where that is unknown the estimate stands."""
        self.in_flight -= 1
        self.prompt_tokens += prompt_tokens or 0
        self.output_tokens += output_tokens or 0
        if self._tokens_allowed is not None and prompt_tokens is not None:
            self._tokens_allowed.take(prompt_tokens + (output_tokens or 0) - charged_tokens, now_s)

    def _refused(self, code: str, message: str, wait_s: float) -> Refusal:
        self.refusals[code] = self.refusals.get(code, 0) + 1
        return Refusal(429, code, message, "caller", retry_after_s=max(ceil(wait_s), 1))


class KeyLimits:
    """The use of all keys of the file."""

    def __init__(self) -> None:
        self._uses: dict[str, KeyUse] = {}

    def apply(self, keys: Iterable[ApiKey], now_s: float) -> None:
        """These are the keys from now on. Those that have left are forgotten once their requests have ended."""
        before, self._uses = self._uses, {}
        for key in keys:
            use = self._uses[key.name] = before.get(key.name) or KeyUse(key, now_s)
            if use.key is not key:
                use.apply(key, now_s)

    def of(self, name: str) -> KeyUse | None:
        """The use of the key called `name`, None if it is no longer known."""
        return self._uses.get(name)

    def all(self) -> list[KeyUse]:
        """The use of every key, in the order of the file."""
        return list(self._uses.values())


def _bucket(bucket: TokenBucket | None, per_s: float | None, size: float, now_s: float) -> TokenBucket | None:
    if per_s is None:
        return None
    if bucket is None:
        return TokenBucket(per_s, size, now_s)
    bucket.resize(per_s, size, now_s)
    return bucket
