"""Server-sent events as bytes: cuts an event stream at event ends, wherever the network cut it."""

import re

EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")
MAX_EVENT_BYTES = 256 * 1024
"""Of a longer event only the beginning is looked into, where its type is; it is passed on like all others."""
KEPT_HEAD_BYTES = 512


class EventCutter:
    """Collects the part of an event that a read left unfinished. Says nothing about what is passed on, or when.

    Invariant: `rest` holds no complete event. Of an event longer than `MAX_EVENT_BYTES` only the
    beginning is kept.
    """

    __slots__ = ("_head", "_skipping", "rest")

    def __init__(self) -> None:
        self.rest = bytearray()
        self._skipping = False
        self._head = b""

    @property
    def between_events(self) -> bool:
        """Whether everything fed so far ended with an event's end."""
        return not self.rest and not self._skipping

    def feed(self, data: bytes) -> bytes:
        """The complete events that `data` finishes, as one block, empty if there is none."""
        if data.endswith(b"\n\n") and self.between_events:
            return data
        rest = self.rest
        searched = max(0, len(rest) - 3)
        rest += data
        end = _last_event_end(rest, searched)
        if end == 0:
            self._bound()
            return b""
        block = bytes(rest[:end])
        del rest[:end]
        if self._skipping:
            self._skipping = False
            first = EVENT_END.search(block)
            block = self._head + b"\n\n" + (block[first.end() :] if first else b"")
        self._bound()
        return block

    def _bound(self) -> None:
        if len(self.rest) > MAX_EVENT_BYTES:
            if not self._skipping:
                self._head = bytes(self.rest[:KEPT_HEAD_BYTES]).rstrip(b"\r\n")
            self._skipping = True
            del self.rest[:-3]


def _last_event_end(data: bytearray, start: int) -> int:
    """Where the last event that ends in `data[start:]` does, 0 if none does: `EVENT_END`, from behind."""
    found = data.rfind(b"\n\n", start)
    end = found + 2 if found >= 0 else 0
    if b"\r" in data:
        for ending in (b"\n\r\n", b"\r\r"):
            found = data.rfind(ending, start)
            if found >= 0:
                end = max(end, found + len(ending))
    return end


def event_lines(block: bytes) -> list[tuple[bytes | None, bytes]]:
    """The events of a block of complete events as (type or None, data), without comments and other fields.

    An event of comments alone gives nothing. Several `data` lines are joined with a line feed, as the standard says.
    """
    events: list[tuple[bytes | None, bytes]] = []
    for raw in EVENT_END.split(block):
        kind: bytes | None = None
        data: list[bytes] = []
        for line in raw.splitlines():
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                kind = value
        if data or kind is not None:
            events.append((kind, b"\n".join(data)))
    return events
