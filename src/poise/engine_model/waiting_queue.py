"""The sequences that wait, by their order: a preempted one has kept its place and so stands in front again."""

import heapq

from poise.engine_model.sequence import Sequence, SequenceState


class WaitingQueue:
    """A heap by `Sequence.order`. An aborted sequence has left by its state; its entry goes when it is reached."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, sequence: Sequence) -> None:
        """Let `sequence` wait."""
        sequence.state = SequenceState.WAITING
        self._count += 1
        heapq.heappush(self._heap, (sequence.order, sequence))

    def head(self) -> Sequence | None:
        """The first in order, None if nobody waits."""
        while self._heap and self._heap[0][1].state is not SequenceState.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> None:
        """Remove what `head` gave."""
        self._count -= 1
        heapq.heappop(self._heap)

    def forget(self) -> None:
        """Count one less: a waiting sequence is about to get another state."""
        self._count -= 1
