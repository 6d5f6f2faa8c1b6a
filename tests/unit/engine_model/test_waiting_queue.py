"""The queue gives its sequences by order, and those that left it never."""

from hypothesis import given
from hypothesis import strategies as st

from poise.engine_model.sequence import Sequence, SequenceState
from poise.engine_model.waiting_queue import WaitingQueue


def waiting(queue: WaitingQueue, *orders: tuple[int, int]) -> list[Sequence]:
    sequences = [Sequence(1, 1) for _ in orders]
    for sequence, order in zip(sequences, orders, strict=True):
        sequence.order = order
        queue.push(sequence)
    return sequences


def drain(queue: WaitingQueue) -> list[tuple[int, int]]:
    orders = []
    while (head := queue.head()) is not None:
        orders.append(head.order)
        queue.pop()
    return orders


def test_the_more_urgent_come_first_then_those_who_came_first() -> None:
    queue = WaitingQueue()
    waiting(queue, (0, 2), (5, 1), (-1, 3), (0, 1))
    assert len(queue) == 4
    assert drain(queue) == [(-1, 3), (0, 1), (0, 2), (5, 1)]
    assert len(queue) == 0 and queue.head() is None


def test_looking_at_the_head_changes_nothing() -> None:
    queue = WaitingQueue()
    (only,) = waiting(queue, (0, 1))
    assert queue.head() is queue.head() is only
    assert len(queue) == 1 and only.state is SequenceState.WAITING


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)))
def test_who_left_is_skipped_wherever_it_stood(order: list[int], left: set[int]) -> None:
    queue = WaitingQueue()
    for sequence in waiting(queue, *((0, number) for number in order)):
        if sequence.order[1] in left:
            queue.forget()
            sequence.state = SequenceState.ABORTED
    assert len(queue) == 8 - len(left)
    assert drain(queue) == [(0, number) for number in range(8) if number not in left]
