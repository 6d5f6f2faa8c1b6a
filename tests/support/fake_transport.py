"""A transport without a socket, for what writes to one: strict about writes after its end."""

import asyncio


class FakeTransport(asyncio.Transport):
    """Keeps each write. A write after `close` fails the test, as those bytes would be lost or raise."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.writes: list[bytes] = []
        self._closing = False

    @property
    def written(self) -> bytes:
        """All that was written."""
        return b"".join(self.writes)

    def write(self, data: bytes) -> None:  # type: ignore[override]
        assert not self._closing, f"{data!r} was written to a closed transport"
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
