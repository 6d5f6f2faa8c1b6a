"""What the host names of replicas stand for, looked up again and again."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import ip_address

import structlog

log = structlog.get_logger()

LOOK_S = 5.0
"""A look that takes longer has failed: a name server that does not answer must not hold up the others' names."""

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name, the preferred one first. Raises `OSError` if there are none."""


async def resolve(name: str) -> list[str]:
    """What the system says, IPv4 and IPv6."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(address[4][0]) for address in found]


class HostNames:
    """The addresses of each name, as the last good answer gave them: one that fails changes nothing, and is said once.

    Names that are addresses themselves are not looked up.
    """

    def __init__(self, resolve: Resolve = resolve) -> None:
        self.addresses: dict[str, tuple[str, ...]] = {}
        self._resolve = resolve
        self._failing: set[str] = set()

    async def look(self, hosts: Collection[str]) -> None:
        """Look all of them up, at once."""
        await asyncio.gather(*(self._look(host) for host in hosts if not _is_address(host)))

    def unknown(self, hosts: Collection[str]) -> set[str]:
        """Those that have not been looked up with success, and are names."""
        return {host for host in hosts if host not in self.addresses and not _is_address(host)}

    def forget_all_but(self, hosts: Collection[str]) -> None:
        """Nobody wants the others any more."""
        for host in self.addresses.keys() - hosts:
            del self.addresses[host]
        self._failing.intersection_update(hosts)

    async def _look(self, host: str) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                found = tuple(dict.fromkeys(await self._resolve(host)))
        except (OSError, ValueError) as error:  # TimeoutError is an OSError, a name that cannot be one a ValueError
            self._failed(host, str(error) or f"no answer within {LOOK_S:g} s")
            return
        if not found:
            self._failed(host, "no address")
            return
        if host in self._failing:
            self._failing.discard(host)
            log.info("name found again", host=host)
        if set(found) != set(self.addresses.get(host, ())):
            self.addresses[host] = found
            log.info("addresses of a name", host=host, addresses=", ".join(found))

    def _failed(self, host: str, problem: str) -> None:
        if host not in self._failing:
            self._failing.add(host)
            kept = ", ".join(self.addresses.get(host, ())) or "none"
            log.warning("name not found, its addresses are kept", host=host, addresses=kept, problem=problem)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
