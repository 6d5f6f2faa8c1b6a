"""What a change of the configuration can do to a gateway that runs."""

from functools import reduce

from poise.config.keys import all_keys
from poise.config.settings import Settings

APPLIED = (
    "replicas", "idempotency", "membership", "models", "policy", "timeouts", "retry", "limits", "cors",
    "reveal_replica", "log.level",
)  # fmt: skip
"""Keys, and beginnings of keys, that take effect while the gateway runs. All others wait for a restart."""


def needs_restart(started_with: Settings, settings: Settings) -> list[str]:
    """The keys that differ from those that the gateway `started_with`, and only count when it starts again."""
    changed = [name for name in all_keys() if _value(started_with, name) != _value(settings, name)]
    return [name for name in changed if not _is_applied(name)]


def _is_applied(name: str) -> bool:
    return any(name == applied or name.startswith(f"{applied}.") for applied in APPLIED)


def _value(settings: Settings, name: str) -> object:
    return reduce(getattr, name.split("."), settings)
