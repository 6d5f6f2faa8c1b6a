"""Opens connections to a server that may have several addresses."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from poise.core.errors import nothing_listens
from poise.core.replica import ReplicaAddress
from poise.core.tls import client_context

SHUTDOWN_S = 5.0
"""How long a server over TLS has to say goodbye when a connection is closed."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class Dialer:
    """Connects to whichever of a server's addresses answers, and keeps to that one while it does."""

    def __init__(self, address: ReplicaAddress) -> None:
        self._address = address
        self._turn = 0

    async def open(self, protocol: Callable[[], ProtocolT], hosts: Sequence[str]) -> tuple[ProtocolT, str]:
        """A new connection, and which of `hosts` it leads to; if there are none, the name is looked up.

        An address that does not answer, or had not when time was up, is the last to be tried next time. Raises
        `OSError` if none does (that nothing listens there only if it is so of all), `ValueError` for a bad name.
        """
        address = self._address
        hosts = [address.ip] if address.ip is not None else hosts or [address.host]
        failure: OSError | None = None
        for _ in hosts:
            host = hosts[self._turn % len(hosts)]
            self._turn += 1
            try:
                made = await self._open(protocol, host)
            except OSError as error:
                if failure is None or not nothing_listens(error):
                    failure = error
            else:
                self._turn -= 1
                return made, host
        assert failure is not None
        raise failure

    async def _open(self, protocol: Callable[[], ProtocolT], host: str) -> ProtocolT:
        loop, address = asyncio.get_running_loop(), self._address
        if not address.tls:
            return (await loop.create_connection(protocol, host, address.port))[1]
        tls, name = client_context(address.tls_files), address.host
        made = loop.create_connection(
            protocol, host, address.port, ssl=tls, server_hostname=name, ssl_shutdown_timeout=SHUTDOWN_S
        )
        return (await made)[1]
