"""Waiting writes go out in order, once, at the end of the round or before, and never to a closed transport."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from poise.proxy.write_batch import WriteBatch
from support.fake_transport import FakeTransport

TRANSPORTS = 3


@dataclass(frozen=True)
class Step:
    """One thing that happens: a write, a flush, a close, or the end of the loop's round."""

    kind: Literal["write", "flush", "close", "round"]
    transport: int = 0


steps = st.builds(Step, st.sampled_from(["write", "write", "write", "flush", "close", "round"]),
                  st.integers(0, TRANSPORTS - 1))  # fmt: skip


async def take(all_steps: list[Step]) -> tuple[list[FakeTransport], list[list[bytes]]]:
    """What was written, and what had to be: every write that was flushed, or saw its round end, before the close."""
    batch, transports = WriteBatch(), [FakeTransport() for _ in range(TRANSPORTS)]
    expected: list[list[bytes]] = [[] for _ in transports]
    waiting: list[tuple[int, bytes]] = []
    for number, step in enumerate(all_steps):
        transport = transports[step.transport]
        if step.kind == "write":
            batch.write(transport, b"%d" % number)
            waiting.append((step.transport, b"%d" % number))
        elif step.kind == "close":
            transport.close()
            waiting = [(index, data) for index, data in waiting if index != step.transport]
            continue
        else:
            if step.kind == "flush":
                batch.flush()
            else:
                await asyncio.sleep(0)
            for index, data in waiting:
                if not transports[index].is_closing():
                    expected[index].append(data)
            waiting = []
        assert [transport.writes for transport in transports] == expected, "nothing earlier, nothing twice"
    await asyncio.sleep(0)
    for index, data in waiting:
        if not transports[index].is_closing():
            expected[index].append(data)
    return transports, expected


@given(all_steps=st.lists(steps, max_size=25))
def test_every_write_goes_out_once_in_order_and_none_after_a_close(all_steps: list[Step]) -> None:
    transports, expected = asyncio.run(take(all_steps))
    assert [transport.writes for transport in transports] == expected


async def test_one_order_holds_for_all_transports() -> None:
    batch, log = WriteBatch(), []

    class Logging(FakeTransport):
        def write(self, data: bytes) -> None:  # type: ignore[override]
            super().write(data)
            log.append((self.name, data))

    first, second = Logging("first"), Logging("second")
    for transport, data in [(first, b"1"), (second, b"2"), (first, b"3")]:
        batch.write(transport, data)
    assert log == []
    await asyncio.sleep(0)
    assert log == [("first", b"1"), ("second", b"2"), ("first", b"3")]


async def test_what_a_write_sets_off_is_written_in_the_next_round() -> None:
    batch = WriteBatch()

    class Answering(FakeTransport):
        def write(self, data: bytes) -> None:  # type: ignore[override]
            super().write(data)
            if data == b"first":
                batch.write(self, b"second")

    transport = Answering()
    batch.write(transport, b"first")
    await asyncio.sleep(0)
    assert transport.writes == [b"first"]
    await asyncio.sleep(0)
    assert transport.writes == [b"first", b"second"]
