"""The admin port as a socket: what callers need must not go to whoever only holds connections open."""

import asyncio
import socket

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from poise.admin.server import AdminServer

WHOLE = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def _page(_: object) -> PlainTextResponse:
    return PlainTextResponse("page")


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nx: ", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{", WHOLE + b"GET /"],
)
async def test_a_connection_without_a_whole_request_is_ended(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr("poise.admin.server.REQUEST_S", 0.2)
    listener = socket.create_server(("127.0.0.1", 0))
    server = AdminServer(Starlette(routes=[Route("/", _page)]), listener)
    await server.start()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(sent)
    try:
        async with asyncio.timeout(4):
            got = await reader.read()
    except ConnectionError:
        got = b""
    finally:
        writer.close()
        await server.close()
    assert (b"page" in got) == sent.startswith(WHOLE)
