"""The background work that keeps the gateway as configuration, certificates, admin API and DNS want it."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from poise.app.host_names import HostNames
from poise.app.membership import Membership
from poise.config.settings import MembershipSection
from poise.core.clock import monotonic_s
from poise.core.tasks import TaskGroupOwner

log = structlog.get_logger()

FIRST_LOOK_S = 2.0
"""How long the start waits for the addresses of names. After that they come when they come."""


class Upkeep:
    """Does `chores` and follows names from `start` to `close`, as often as the `settings` in force say."""

    def __init__(
        self,
        membership: Membership,
        names: HostNames,
        chores: Sequence[Callable[[], None]],
        settings: Callable[[], MembershipSection],
    ) -> None:
        self._membership = membership
        self._names = names
        self._chores = chores
        self._settings = settings
        self._tasks = TaskGroupOwner()

    async def start(self) -> None:
        """Begin, once names have been looked up or `FIRST_LOOK_S` is over."""
        first = self._tasks.spawn(self._look_up(), name="names")
        await asyncio.wait([first], timeout=FIRST_LOOK_S)
        self._tasks.spawn(self._do_chores(), name="membership")
        self._tasks.spawn(self._keep_names(), name="names")

    async def close(self) -> None:
        """End all of it."""
        await self._tasks.close()

    async def _do_chores(self) -> None:
        while True:
            await asyncio.sleep(self._settings().check_interval_s)
            for chore in (*self._chores, self._membership.reconcile):
                try:
                    chore()
                except Exception:  # the fleet depends on this loop: what went wrong once may go well next time
                    log.exception("upkeep failed")

    async def _keep_names(self) -> None:
        looked_at_s = monotonic_s()
        while True:
            await asyncio.sleep(self._settings().check_interval_s)
            due = monotonic_s() - looked_at_s >= self._settings().dns_interval_s
            if due or self._names.unknown(self._membership.hosts):
                looked_at_s = monotonic_s() if due else looked_at_s
                await self._look_up(only_unknown=not due)

    async def _look_up(self, *, only_unknown: bool = False) -> None:
        hosts = self._membership.hosts
        self._names.forget_all_but(hosts)
        await self._names.look(self._names.unknown(hosts) if only_unknown else hosts)
        self._membership.reconcile()
