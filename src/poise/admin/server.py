"""The admin port: plain Starlette on uvicorn, in the gateway's own event loop."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from poise.admin.control import Membership, control_routes, problem, refused
from poise.admin.decisions_page import MOST, decisions
from poise.admin.exposition import CONTENT_TYPE
from poise.admin.fleet_page import fleet_page
from poise.admin.guard import AdminGuard
from poise.admin.metrics import Sources, metrics_page
from poise.core.clock import monotonic_s
from poise.core.errors import ConfigError, PoiseError
from poise.core.secret import Secret
from poise.core.tasks import TaskGroupOwner

REQUEST_S = 10.0
"""How long a request may take to arrive."""


def admin_app(
    sources: Sources, is_ready: Callable[[], bool], membership: Membership, key: Secret | None = None
) -> Starlette:
    """The pages of the admin port. `is_ready` says whether a request could be placed now. `key`: see `AdminGuard`."""

    def metrics(_: Request) -> Response:
        return Response(metrics_page(sources, monotonic_s()), media_type=CONTENT_TYPE)

    def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    def readyz(_: Request) -> Response:
        return PlainTextResponse("ready\n") if is_ready() else PlainTextResponse("not ready\n", 503)

    def fleet(_: Request) -> Response:
        return JSONResponse(fleet_page(sources.fleet, monotonic_s()))

    async def explained(request: Request) -> Response:
        parts = []
        for decision in decisions(sources.trails, **_filters(request)):
            parts.append(msgspec.json.encode(decision))
            await asyncio.sleep(0)  # streams go on meanwhile
        return Response(b'{"decisions":[%b]}' % b",".join(parts), media_type="application/json")

    pages = {
        "/metrics": metrics,
        "/healthz": healthz,
        "/readyz": readyz,
        "/api/fleet": fleet,
    }
    return Starlette(
        routes=[
            *(Route(path, _inline(page)) for path, page in pages.items()),
            Route("/api/decisions", explained),
            *control_routes(membership),
        ],
        middleware=[Middleware(AdminGuard, key=key)],
        exception_handlers={HTTPException: _error, PoiseError: refused},
    )


class AdminServer:
    """Serves an app on a socket that is bound already, until `close`; with `tls`, over https."""

    def __init__(self, app: Starlette, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        config = uvicorn.Config(
            app,
            http=_BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        config.load()
        config.ssl = tls
        self._server = _OwnedServer(config)
        self._listener = listener
        self._tasks = TaskGroupOwner()

    async def start(self) -> None:
        """Serve from now on."""
        self._task = self._tasks.spawn(self._server.serve([self._listener]), name="admin port")
        await self._server.listening.wait()

    async def close(self) -> None:
        """Close the listener and every connection."""
        self._server.should_exit = self._server.force_exit = True
        await self._task


class _BoundedProtocol(HttpToolsProtocol):
    """Ends connections on which no whole request comes in time: they take files that callers need."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.on_message_begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_time()
        self._late = self.loop.call_later(REQUEST_S, self.transport.abort)
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._in_time()
        super().on_message_complete()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()


class _OwnedServer(uvicorn.Server):
    """Leaves signals to the gateway, which decides what stops and in which order."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _filters(request: Request) -> dict[str, Any]:
    """What the query of `/api/decisions` asks for. Raises `ConfigError` for what it does not know."""
    asked: dict[str, Any] = dict(request.query_params)
    if unknown := asked.keys() - {"replica", "request_id", "limit"}:
        raise ConfigError(f"unknown filter {min(unknown)!r}", hint="known are replica, request_id and limit")
    limit = asked.get("limit")
    if limit is not None:
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= MOST):
            raise ConfigError(f"limit is {limit!r}", hint=f"it is a whole number, 1 to {MOST}")
        asked["limit"] = int(limit)
    return asked


def _inline(page: Callable[[Request], Response]) -> Callable[..., object]:
    """`page` as a coroutine: Starlette would run a plain function in a thread, beside the loop that owns the fleet."""

    async def endpoint(request: Request) -> Response:
        return page(request)

    return endpoint


async def _error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).name.lower()
    return problem(error.status_code, code, error.detail.lower(), **(error.headers or {}))
