"""The pages of the admin port, without a socket."""

import json
from typing import Any

import pytest

from poise.admin.control import LARGEST_BODY_BYTES, NameTaken, NoSuchReplica
from poise.admin.metrics import Sources
from poise.admin.server import admin_app
from poise.core.errors import ConfigError, PoiseError
from poise.fleet.fleet import Fleet
from poise.proxy.counters import Counters


class Recorder:
    """Stands for the membership: notes what it is asked for, or raises what it is told to."""

    def __init__(self, error: PoiseError | None = None) -> None:
        self.asked: list[tuple[str, object]] = []
        self._error = error

    def add(self, entry: object) -> str:
        self._note("add", entry)
        return "x"

    def remove(self, name: str) -> None:
        self._note("remove", name)

    def drain(self, name: str) -> None:
        self._note("drain", name)

    def resume(self, name: str) -> None:
        self._note("resume", name)

    def _note(self, what: str, argument: object) -> None:
        self.asked.append((what, argument))
        if self._error is not None:
            raise self._error


async def get(
    path: str, *, method: str = "GET", ready: bool = True, sent_body: bytes = b"", membership: Recorder | None = None
) -> tuple[int, str, bytes]:
    """Status, content type and body of one request to the app."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent_body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "root_path": ""}
    app = admin_app(Sources(Fleet(), Counters(), "random"), lambda: ready, membership or Recorder())
    await app(scope, receive, send)
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


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "asked"),
    [
        ("POST", "/api/replicas", b'{"url": "http://h:1"}', 201, ("add", {"url": "http://h:1"})),
        ("DELETE", "/api/replicas/a.b-c_d", b"", 202, ("remove", "a.b-c_d")),
        ("POST", "/api/replicas/a/drain", b"", 202, ("drain", "a")),
        ("POST", "/api/replicas/a/resume", b"", 202, ("resume", "a")),
    ],
)
async def test_changes_are_passed_on(
    method: str, path: str, body: bytes, status: int, asked: tuple[str, object]
) -> None:
    membership = Recorder()
    seen, kind, answer = await get(path, method=method, sent_body=body, membership=membership)
    assert (seen, kind, membership.asked) == (status, "application/json", [asked])
    assert json.loads(answer)["name"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoSuchReplica("there is no such replica", hint="look"), 404, "no_such_replica"),
        (NameTaken("it is there", hint="another"), 409, "replica_exists"),
        (ConfigError("url is missing", hint="give it"), 422, "not_usable"),
    ],
)
async def test_what_is_wrong_is_said_with_a_hint(error: PoiseError, status: int, code: str) -> None:
    for method, path in (("POST", "/api/replicas"), ("DELETE", "/api/replicas/a"), ("POST", "/api/replicas/a/drain")):
        seen, _, body = await get(path, method=method, sent_body=b"{}", membership=Recorder(error))
        said = json.loads(body)["error"]
        assert (seen, said["code"], said["message"], said["hint"]) == (status, code, error.args[0], error.hint)


async def test_a_body_that_cannot_be_read_changes_nothing() -> None:
    membership = Recorder()
    large = b'"' + b"x" * LARGEST_BODY_BYTES + b'"'
    for body, status in ((b"", 400), (b"{", 400), (b"\xff", 400), (large, 422)):
        assert (await get("/api/replicas", method="POST", sent_body=body, membership=membership))[0] == status
    assert membership.asked == []
