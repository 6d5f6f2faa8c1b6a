"""One API key's name and rights. The key itself is never part of it."""

from dataclasses import dataclass

from poise.core.errors import Refusal

LEAST_PRIORITY, MOST_PRIORITY = -100, 100
KEYLESS_PRIORITIES = (-10, 10)
"""What `X-Poise-Priority` may say where callers need no key. More than that is for keys to grant."""
BAD_PRIORITY = Refusal(
    400, "bad_priority", f"X-Poise-Priority is a whole number, {LEAST_PRIORITY} to {MOST_PRIORITY}", "caller"
)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What the caller with this key may do. None is no limit.

    `models` it may name, `("*",)` is any. `priority` is both its own and the most it may ask for.
    """

    name: str
    models: tuple[str, ...] = ("*",)
    requests_per_s: float | None = None
    tokens_per_min: int | None = None
    max_concurrency: int | None = None
    priority: int = 0

    def may_use(self, model: str | None) -> bool:
        """Whether it may send a request that names `model`, None being one that names none that can be read."""
        return "*" in self.models or model in self.models


def priority_of(header: bytes | None, key: ApiKey | None) -> int | Refusal:
    """The priority of a request with this `X-Poise-Priority`: never above the key's own, which is what counts without.

    Without keys, -10 to 10 and 0 if nothing is said.
    """
    least, most, usual = (*KEYLESS_PRIORITIES, 0) if key is None else (LEAST_PRIORITY, key.priority, key.priority)
    if header is None:
        return usual
    try:
        wanted = int(header)
    except ValueError:
        return BAD_PRIORITY
    if not LEAST_PRIORITY <= wanted <= MOST_PRIORITY:
        return BAD_PRIORITY
    return min(max(wanted, least), most)
