"""A listening port that is given up, or handed over to a newer process, without losing a connection.

Linux deals new connections out among all sockets that listen on an address with `SO_REUSEPORT`, and resets those that a
socket has not accepted when it is closed. So the kernel is first told to give new connections to the other process, and
what waits is accepted before the socket is closed.
"""

import ctypes
import os
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, Final

_ATTACH_REUSEPORT_CBPF: Final = 51
_DETACH_REUSEPORT_BPF: Final = 68
_RETURN: Final = 0x06
"""Classic BPF's instruction that ends a program with a constant."""
_LISTEN: Final = "0A"
"""State in the kernel's list of sockets."""


class SharedPort:
    """One listening socket, and who else listens on its address. Needs Linux; elsewhere `hand_over` does nothing."""

    __slots__ = ("_elders", "socket")

    def __init__(self, listening: socket.socket) -> None:
        self.socket = listening
        with suppress(OSError):  # what the last process that left has set
            listening.setsockopt(socket.SOL_SOCKET, _DETACH_REUSEPORT_BPF, 0)
        self._elders = self._others()

    def hand_over(self) -> None:
        """Have new connections go to the one other process that listens here. Nothing changes if there is none.

        The kernel counts sockets in the order in which they began to listen; a number without a socket is ignored.
        """
        others = self._others()
        if len(others) == 1:
            number = 0 if others <= self._elders else 1
            program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, number))
            with suppress(OSError):
                self.socket.setsockopt(
                    socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, struct.pack("HP", 1, ctypes.addressof(program))
                )

    def _others(self) -> set[str]:
        """Inodes of the other sockets that listen on this address."""
        if sys.platform != "linux":
            return set()
        own = str(os.fstat(self.socket.fileno()).st_ino)
        page = "/proc/net/tcp6" if self.socket.family == socket.AF_INET6 else "/proc/net/tcp"
        try:
            with open(page, encoding="ascii") as lines:
                fields = [line.split() for line in lines]
        except OSError:
            return set()
        addresses = {field[9]: field[1] for field in fields if field[3] == _LISTEN}
        return {inode for inode, address in addresses.items() if address == addresses.get(own) and inode != own}


class Listener:
    """The listening sockets of `server`. Belongs to the event loop."""

    __slots__ = ("_ports", "_server", "port")

    def __init__(self, server: Any) -> None:
        self._server = server
        """An `asyncio.Server`. Not said to be one: compiled code would insist that `sockets` is a tuple, uvloop's is a
        list."""
        sockets: list[socket.socket] = list(server.sockets)
        self._ports = [SharedPort(socket.socket(fileno=os.dup(listening.fileno()))) for listening in sockets]
        self.port: int = self._ports[0].socket.getsockname()[1]

    def hand_over(self) -> None:
        """See `SharedPort.hand_over`."""
        for port in self._ports:
            port.hand_over()

    def close(self) -> list[socket.socket]:
        """Stop listening. Returns the connections that callers had made and nobody had accepted."""
        self._server.close()
        accepted: list[socket.socket] = []
        for port in self._ports:
            with suppress(BlockingIOError, ConnectionError):
                while True:
                    accepted.append(port.socket.accept()[0])
            port.socket.close()
        return accepted
