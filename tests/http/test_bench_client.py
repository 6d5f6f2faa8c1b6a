"""The load generator's client over real sockets: cut anywhere, broken off, refused."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from poise.bench.client import TimedAnswer, stream_chat

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-poise-replica: r1\r\n\r\n"
)
EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    b": waiting\n\n",
    'data: {"choices":[{"index":0,"delta":{"content":"Hé"}}]}\n\n'.encode(),
    b'data: {"choices":[{"index":0,"delta":{"content":"llo"},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n',
    b"data: [DONE]\n\n",
)
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def server(parts: Sequence[bytes], pause_s: float = 0.0) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Sends `parts` in answer to each request and closes; yields its port and the requests it saw."""
    seen: list[bytes] = []
    answering: list[asyncio.Task[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.append(task)
        with suppress(ConnectionError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(next(line.split(b":")[1] for line in head.splitlines() if line.startswith(b"content-length")))
            seen.append(head + await reader.readexactly(length))
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1], seen
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering)


async def ask(port: int, timeout_s: float = 5.0) -> TimedAnswer:
    return await stream_chat("127.0.0.1", port, {"model": "m"}, headers={"x-session-id": "s"}, timeout_s=timeout_s)


async def test_an_answer_is_read_the_same_wherever_it_is_cut() -> None:
    whole = HEAD + b"".join(map(chunk, EVENTS)) + LAST_CHUNK
    for cut in range(1, len(whole), 7):
        async with server([whole[:cut], whole[cut:]]) as (port, _):
            answer = await ask(port)
        assert (answer.error, answer.status, answer.text) == (None, 200, "Héllo"), f"cut at {cut}"
        assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (9, 4, 2)
        assert answer.headers["x-poise-replica"] == "r1"


async def test_the_request_asks_for_a_stream_with_usage() -> None:
    async with server([HEAD, *map(chunk, EVENTS), LAST_CHUNK]) as (port, seen):
        await ask(port)
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"\r\nx-session-id: s" in head
    assert json.loads(body) == {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


async def test_the_first_output_is_the_first_text_not_the_head_a_role_or_a_comment() -> None:
    async with server([HEAD, *map(chunk, EVENTS), LAST_CHUNK], pause_s=0.1) as (port, _):
        answer = await ask(port)
    assert answer.first_output_s is not None
    assert 0.25 < answer.first_output_s < 0.45, "after head, role and comment, each of which takes 0.1 s"
    assert answer.end_to_end_s > answer.first_output_s + 0.25


@pytest.mark.parametrize(
    ("parts", "status", "error"),
    [
        ([HEAD, *map(chunk, EVENTS[:-1]), LAST_CHUNK], 200, "the stream ended without [DONE]"),
        ([HEAD, *map(chunk, EVENTS[:3])], 200, "the stream ended without [DONE]"),
        ([HEAD, chunk(b'data: {"error":{"message":"no room"}}\n\n'), chunk(EVENTS[-1]), LAST_CHUNK], 200, "no room"),
        ([b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}"], 503, "status 503: {}"),
        ([], None, "connection: closed without an answer"),
        ([b"SSH-2.0-x\r\n"], None, "connection: "),
        ([HEAD, chunk(b"data: not json\n\n")], 200, "connection: "),
    ],
)
async def test_what_is_not_a_whole_answer_is_an_error(parts: list[bytes], status: int | None, error: str) -> None:
    async with server(parts) as (port, _):
        answer = await ask(port)
    assert answer.status == status
    assert answer.error is not None
    assert answer.error.startswith(error)


async def test_silence_and_a_closed_port_are_errors_too() -> None:
    async with server([HEAD], pause_s=5) as (port, _):
        assert (await ask(port, timeout_s=0.2)).error == "no answer within 0.2 s"
    answer = await ask(port)
    assert (answer.status, answer.first_output_s) == (None, None)
    assert answer.error is not None
    assert answer.error.startswith("connection: ")
