"""What can go wrong when something is started although its settings are right."""

import errno
import os
import socket

from poise.core.errors import PoiseError


class StartError(PoiseError):
    """The machine does not allow what the settings ask for: a port, a file, a process."""


class PortError(StartError):
    """A port cannot be listened on. `in_use` says whether another process has it, `to_share` whether both could."""

    def __init__(self, host: str, port: int, error: OSError, *, to_share: bool = False) -> None:
        self.in_use = error.errno == errno.EADDRINUSE
        hint = "give an address of this machine, 127.0.0.1 or 0.0.0.0"
        if self.in_use:
            hint = "choose another port, or stop the process that has it"
            hint += ", or start both with --reuse-port to take over" if to_share else ""
        elif error.errno == errno.EACCES:
            hint = "ports below 1024 need rights: choose a higher one"
        reason = "the port is in use" if self.in_use else _reason(error)
        super().__init__(f"cannot listen on {host} port {port}: {reason}", hint=hint)


def _reason(error: OSError) -> str:
    """Without the address, which asyncio and socket add in forms of their own."""
    if isinstance(error, socket.gaierror):
        return "the name stands for no address"
    return os.strerror(error.errno).lower() if error.errno else str(error)
