"""HTTP/1.1 heads and bodies read off a `Wire`: plain and strict, and sharing nothing with the gateway's parser."""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from support.wire import DEADLINE_S, PeerGone, Wire


class Framing(Enum):
    """How the end of a body is known."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


@dataclass(frozen=True)
class Head:
    """A request's or an answer's head: as it came, and its headers in order, names as they were spelled."""

    raw: bytes

    @cached_property
    def first_line(self) -> bytes:
        """The request line or the status line, without its end."""
        return self.raw.split(b"\r\n", 1)[0]

    @cached_property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """(name, value) of each line; a line that is no header fails the test."""
        pairs = []
        for line in self.raw[:-4].split(b"\r\n")[1:]:
            name, colon, value = line.partition(b":")
            assert colon and name and name == name.strip() and b"\n" not in line, f"bad header line {line!r}"
            pairs.append((name, value.strip()))
        return pairs

    def values(self, name: str) -> list[bytes]:
        """Every value of the header, in order."""
        return [value for key, value in self.headers if key.lower() == name.lower().encode()]

    def value(self, name: str) -> bytes | None:
        """The header's one value, None if it is absent; two of it fail the test."""
        values = self.values(name)
        assert len(values) < 2, f"header {name} comes {len(values)} times: {values}"
        return values[0] if values else None

    @cached_property
    def framing(self) -> Framing | None:
        """What the head says of its body, None if nothing. Both at once, or either twice, fails the test."""
        length, coding = self.value("content-length"), self.value("transfer-encoding")
        assert length is None or coding is None, f"both framings in {self.raw!r}"
        if coding is not None:
            assert coding.lower() == b"chunked", f"transfer-encoding is {coding!r}"
            return Framing.CHUNKED
        return None if length is None else Framing.LENGTH


async def read_head(wire: Wire, within_s: float = DEADLINE_S) -> Head:
    """The next head. Raises `PeerGone` if the peer closes before its end."""
    return Head(await wire.take_until(b"\r\n\r\n", within_s))


class BodyReader:
    """Takes one body off a wire, piece by piece. `complete` once its end has been seen as the framing demands."""

    def __init__(self, wire: Wire, framing: Framing, length: int = 0) -> None:
        self._wire = wire
        self._framing = framing
        self._left = length
        self.complete = framing is Framing.NONE or (framing is Framing.LENGTH and length == 0)
        self.chunk_sizes: list[int] = []
        self.trailers: list[bytes] = []

    async def piece(self, within_s: float = DEADLINE_S) -> bytes:
        """The next decoded bytes as they are there, empty at the end. Raises `PeerGone` if the body is cut short."""
        if self.complete:
            return b""
        if self._framing is Framing.CLOSE:
            data = await self._wire.take_some(1 << 20, within_s)
            self.complete = not data
            return data
        if self._framing is Framing.CHUNKED and self._left == 0 and not await self._next_chunk(within_s):
            return b""
        data = await self._wire.take_some(self._left, within_s)
        if not data:
            raise PeerGone(f"closed with {self._left} bytes of the body missing")
        self._left -= len(data)
        self.complete = self._left == 0 and self._framing is Framing.LENGTH
        return data

    async def _next_chunk(self, within_s: float) -> bool:
        if self.chunk_sizes:
            end = await self._wire.take_until(b"\r\n", within_s)
            assert end == b"\r\n", f"chunk longer than its size: {end!r}"
        line = await self._wire.take_until(b"\r\n", within_s)
        self._left = int(line.split(b";")[0], 16)
        if self._left:
            self.chunk_sizes.append(self._left)
            return True
        while (trailer := await self._wire.take_until(b"\r\n", within_s)) != b"\r\n":
            self.trailers.append(trailer[:-2])
        self.complete = True
        return False
