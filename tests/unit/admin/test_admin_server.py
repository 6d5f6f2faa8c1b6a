"""The pages of the admin port, without a socket."""

import json
from typing import Any

import pytest

from poise.admin.metrics import Sources
from poise.admin.server import admin_app
from poise.fleet.fleet import Fleet
from poise.proxy.counters import Counters


async def get(path: str, *, method: str = "GET", ready: bool = True) -> tuple[int, str, bytes]:
    """Status, content type and body of one request to the app."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "root_path": ""}
    await admin_app(Sources(Fleet(), Counters(), "random"), lambda: ready)(scope, receive, send)
    headers = dict(sent[0]["headers"])
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], headers[b"content-type"].decode(), body


async def test_metrics_are_text_for_prometheus() -> None:
    status, kind, body = await get("/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert body.startswith(b"# HELP poise_info ")


@pytest.mark.parametrize(
    ("path", "ready", "expected"), [("/healthz", False, 200), ("/readyz", True, 200), ("/readyz", False, 503)]
)
async def test_health_does_not_depend_on_the_replicas_and_readiness_does(path: str, ready: bool, expected: int) -> None:
    assert (await get(path, ready=ready))[0] == expected


async def test_the_fleet_is_json() -> None:
    status, kind, body = await get("/api/fleet")
    assert (status, kind, json.loads(body)) == (200, "application/json", {"replicas": []})


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("POST", "/metrics", 405, "method_not_allowed"),
        ("DELETE", "/api/fleet", 405, "method_not_allowed"),
    ],
)
async def test_errors_are_json(method: str, path: str, status: int, code: str) -> None:
    seen, kind, body = await get(path, method=method)
    assert (seen, kind) == (status, "application/json")
    assert json.loads(body)["error"]["code"] == code
