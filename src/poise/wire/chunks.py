"""Where chunks of a chunked body (RFC 9112 7.1) end, for reads that hold exactly one: those need no parser."""

_SIZES: dict[bytes, int] = {b"%x" % size: size for size in range(1, 4096)}
"""Sizes as servers write them. Any other spelling, extension or length is left to the parser."""
_LONGEST_SIZE = 3
_FRAME_BYTES = 4  # two line ends


class ChunkWatch:
    """Follows the bytes of one body from chunk to chunk, for as long as it can be sure of where they end.

    Invariant: `_left` is how much of the chunk that the last read began is still to come, 0 between two chunks, and
    negative once a byte could not be accounted for, which is final.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    def is_one_chunk(self, data: bytes) -> bool:
        """Whether the next read, `data`, is one chunk from its first byte to its last, and not the last of the body."""
        if self._left:
            if self._left > 0:
                self._skip(data)
            return False
        end = data.find(b"\r\n", 0, _LONGEST_SIZE + 2)
        size = _SIZES.get(data[:end]) if end > 0 else None
        if size is not None and len(data) == size + end + _FRAME_BYTES and data.endswith(b"\r\n"):
            return True
        self._skip(data)
        return False

    def _skip(self, data: bytes) -> None:
        position = self._left
        while position < len(data):
            end = data.find(b"\r\n", position, position + _LONGEST_SIZE + 2)
            size = _SIZES.get(data[position:end]) if end > position else None
            if size is None:
                self._left = -1
                return
            position = end + size + _FRAME_BYTES
        self._left = position - len(data)
