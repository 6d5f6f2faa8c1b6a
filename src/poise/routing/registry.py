"""The placement policies by name. A policy is added here and in a file of its own; users name theirs by its class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from random import Random
from typing import Any

from poise.core.errors import ConfigError
from poise.routing.custom import load_custom_policy
from poise.routing.policies.least_requests import LeastRequests
from poise.routing.policies.load_score import LoadScore, LoadScoreSettings
from poise.routing.policies.power_of_two import PowerOfTwo
from poise.routing.policies.random_choice import RandomChoice
from poise.routing.policies.round_robin import RoundRobin
from poise.routing.policies.soft_affinity import SoftAffinity, SoftAffinitySettings
from poise.routing.policy import Policy
from poise.routing.settings import check_names, read_settings

DEFAULT_POLICY = "soft_affinity"


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy in the table: what it does in one line, and how it is made of its settings and the source of chance.

    `settings` is its settings class, None if it has none; `make` is then given None.
    """

    summary: str
    make: Callable[[Any, Random], Policy]
    settings: type[Any] | None = None


POLICIES: Mapping[str, PolicyEntry] = {
    "round_robin": PolicyEntry("each replica in turn", lambda *_: RoundRobin()),
    "random": PolicyEntry("any replica, all equally likely", lambda _, random: RandomChoice(random)),
    "least_requests": PolicyEntry("the fewest requests in flight", lambda *_: LeastRequests()),
    "power_of_two": PolicyEntry("the less busy of two drawn at random", lambda _, random: PowerOfTwo(random)),
    "load_score": PolicyEntry(
        "the least load: KV usage, queue and GPU utilisation, weighted",
        lambda settings, _: LoadScore(settings),
        LoadScoreSettings,
    ),
    "soft_affinity": PolicyEntry(
        "a conversation's home while that has headroom, else the least load",
        lambda settings, _: SoftAffinity(settings),
        SoftAffinitySettings,
    ),
}

ALIASES: Mapping[str, str] = {
    "roundrobin": "round_robin",
    "rr": "round_robin",
    "least_conn": "least_requests",
    "least_connections": "least_requests",
    "p2c": "power_of_two",
    "least_load": "load_score",
    "session": "soft_affinity",
    "consistent_hash": "soft_affinity",
    "sticky_least_loaded": "soft_affinity",
}
"""What people who come from other routers type."""


def policy_name(name: str) -> str:
    """`name` as the table has it: aliases resolved, case and dashes forgiven, a `module:Class` as it is.

    Raises `ConfigError` for a name that is not known.
    """
    if ":" in name:
        return name
    plain = name.strip().lower().replace("-", "_")
    plain = ALIASES.get(plain, plain)
    if plain not in POLICIES:
        near = get_close_matches(plain, [*POLICIES, *ALIASES], n=1)
        meant = f"did you mean {ALIASES.get(near[0], near[0])}? " if near else ""
        raise ConfigError(
            f"policy {name!r} is unknown, known are {', '.join(POLICIES)}",
            hint=f"{meant}a policy of your own is named as package.module:Class",
        )
    return plain


def make_policy(name: str, settings: Mapping[str, object], random: Random) -> Policy:
    """The policy called `name`, or an instance of the class that `package.module:Class` names.

    Raises `ConfigError` if there is no such policy or class, and for settings that it does not have or cannot take.
    """
    name = policy_name(name)
    if ":" in name:
        return load_custom_policy(name, settings)
    entry = POLICIES[name]
    if entry.settings is None:
        check_names(settings, (), f"policy {name}")
        return entry.make(None, random)
    return entry.make(read_settings(entry.settings, settings, f"policy {name}"), random)
