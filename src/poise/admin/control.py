"""The part of the admin API that changes the fleet: replicas are added, drained, resumed and removed."""

from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from poise.core.errors import ConfigError, PoiseError

LARGEST_BODY_BYTES = 64 * 1024


class NoSuchReplica(PoiseError):
    """Nobody has that name."""


class NameTaken(PoiseError):
    """Somebody has that name or that address already."""


class Membership(Protocol):
    """Who may change which replicas there are."""

    def add(self, entry: object) -> str:
        """Add the replica that `entry` describes, in the words of the configuration file; returns its name.

        Raises `ConfigError` if it cannot be read, `NameTaken` if it is there already.
        """

    def remove(self, name: str) -> None:
        """Send a replica nothing more, and forget it when its last request has ended. Raises `NoSuchReplica`."""

    def drain(self, name: str) -> None:
        """Send a replica nothing more until `resume`. Raises `NoSuchReplica`."""

    def resume(self, name: str) -> None:
        """Undo `drain`. Raises `NoSuchReplica`."""


def control_routes(membership: Membership) -> list[Route]:
    """`POST /api/replicas`, `DELETE /api/replicas/{name}`, `POST /api/replicas/{name}/drain` and `.../resume`."""

    async def add(request: Request) -> Response:
        body = await _small_body(request)
        try:
            entry = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            return problem(400, "not_json", "the body is not JSON", 'send {"url": "http://host:8000"}')
        name = membership.add(entry)
        return JSONResponse({"name": name}, 201, headers={"location": f"/api/replicas/{name}"})

    async def remove(request: Request) -> Response:
        membership.remove(request.path_params["name"])
        return _accepted(request, "draining, then gone")

    async def drain(request: Request) -> Response:
        membership.drain(request.path_params["name"])
        return _accepted(request, "draining")

    async def resume(request: Request) -> Response:
        membership.resume(request.path_params["name"])
        return _accepted(request, "taking requests")

    return [
        Route("/api/replicas", add, methods=["POST"]),
        Route("/api/replicas/{name}", remove, methods=["DELETE"]),
        Route("/api/replicas/{name}/drain", drain, methods=["POST"]),
        Route("/api/replicas/{name}/resume", resume, methods=["POST"]),
    ]


def problem(status: int, code: str, message: str, hint: str | None = None, **headers: str) -> JSONResponse:
    """An error of the admin port's own."""
    error: dict[str, Any] = {"message": message, "type": "invalid_request_error", "code": code}
    if hint is not None:
        error["hint"] = hint
    return JSONResponse({"error": error}, status, headers=headers)


async def refused(_: Request, error: Exception) -> Response:
    """The answer to a change that was not made."""
    assert isinstance(error, PoiseError)
    message, hint = str(error.args[0]), error.hint
    if isinstance(error, NoSuchReplica):
        return problem(404, "no_such_replica", message, hint)
    if isinstance(error, NameTaken):
        return problem(409, "replica_exists", message, hint)
    assert isinstance(error, ConfigError)
    return problem(422, "not_usable", message, hint)


def _accepted(request: Request, state: str) -> Response:
    return JSONResponse({"name": request.path_params["name"], "state": state}, 202)


async def _small_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY_BYTES:
            raise ConfigError(f"the body is larger than {LARGEST_BODY_BYTES} bytes", hint="send one replica")
    return body
