"""Which replicas are waited for before callers are let in, and what is said of it."""

import asyncio
from collections.abc import Callable, Iterable

from poise.config.settings import StartupSection
from poise.core.clock import monotonic_s
from poise.fleet.fleet import Fleet
from poise.fleet.replica import Replica

LOOK_S = 0.05
"""Pause between two looks at the fleet."""
FIRST_ANSWERS_S = 1.0
"""How long replicas that need not be waited for have to answer before it is said that they have not."""


async def wait_for_replicas(
    fleet: Fleet, settings: StartupSection, say: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """Come back when those replicas have answered that `settings` ask for, when time is up, or when `stopped` is set.

    Says once which replicas are missing, and at the end how it went.
    """
    wanted, began_s = settings.wait_for_replicas, monotonic_s()
    if wanted == "none":
        return
    await _answered(fleet, wanted, FIRST_ANSWERS_S, stopped)
    if not _enough(fleet, wanted):
        say(f"waits up to {settings.timeout_s:g} s for {_who(wanted)} to answer; not there yet: {missing(fleet)}")
        await _answered(fleet, wanted, settings.timeout_s - FIRST_ANSWERS_S, stopped)
    if stopped.is_set():
        return
    if _enough(fleet, wanted):
        say(f"{_who(wanted)} answered after {monotonic_s() - began_s:.1f} s")
    else:
        say(f"opens without having heard of {missing(fleet)} for {settings.timeout_s:g} s")


async def first_answers(fleet: Fleet, stopped: asyncio.Event) -> None:
    """Give every replica a moment to answer."""
    await _answered(fleet, "all", FIRST_ANSWERS_S, stopped)


def missing(fleet: Fleet) -> str:
    """Names of the replicas that have not answered yet, with commas; empty if all have."""
    return ", ".join(replica.name for replica in fleet if not replica.condition.seen)


def _who(wanted: str) -> str:
    return "a replica" if wanted == "any" else "every replica"


def _enough(fleet: Iterable[Replica], wanted: str) -> bool:
    answered = (replica.condition.seen for replica in fleet)
    return any(answered) if wanted == "any" else all(answered)


async def _answered(fleet: Fleet, wanted: str, within_s: float, stopped: asyncio.Event) -> None:
    deadline_s = monotonic_s() + within_s
    while monotonic_s() < deadline_s and not stopped.is_set() and not _enough(fleet, wanted):  # noqa: ASYNC110 - once
        await asyncio.sleep(LOOK_S)
