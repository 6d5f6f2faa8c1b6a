"""The pages of the admin port, without a socket."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from poise.admin.control import LARGEST_BODY_BYTES, NameTaken, NoSuchReplica
from poise.admin.metrics import Sources
from poise.admin.server import admin_app
from poise.core.errors import ConfigError, PoiseError
from poise.core.secret import Secret
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
    path: str, *, method: str = "GET", ready: bool = True, sent_body: bytes = b"", membership: Recorder | None = None,
    headers: Mapping[str, str] = MappingProxyType({}), key: str | None = None,
) -> tuple[int, str, bytes]:  # fmt: skip
    """Status, content type and body of one request to the app."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent_body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": raw,
        "query_string": query.encode(),
        "root_path": "",
    }
    app = admin_app(
        Sources(Fleet(), Counters(), "random"), lambda: ready, membership or Recorder(), key and Secret(key)
    )
    await app(scope, receive, send)
    got = dict(sent[0]["headers"])
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], got[b"content-type"].decode(), body


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
    unreadable = [b"", b"{", b"\xff", b"[" * 30_000, b'{"url": "http://h:1", "model": "\\ud800"}', b'{"url": NaN}']
    for body, status in (*((body, 400) for body in unreadable), (large, 422)):
        assert (await get("/api/replicas", method="POST", sent_body=body, membership=membership))[0] == status
    assert membership.asked == []


EVERY_PAGE = [
    ("GET", "/metrics"), ("GET", "/api/fleet"), ("POST", "/api/replicas"), ("DELETE", "/api/replicas/a"),
    ("POST", "/api/replicas/a/drain"), ("POST", "/api/replicas/a/resume"), ("GET", "/nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), EVERY_PAGE)
@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer s3cret2",
        "Bearer s3cre",
        "Basic s3cret",
        "s3cret",
        "Bearer \xff",
    ],
)
async def test_everything_but_health_asks_for_the_key(method: str, path: str, given: str | None) -> None:
    membership = Recorder()
    headers = {} if given is None else {"authorization": given}
    status, _, body = await get(path, method=method, headers=headers, key="s3cret", membership=membership)
    assert (status, json.loads(body)["error"]["code"], membership.asked) == (401, "unauthorized", [])
    assert b"s3cre" not in body


async def test_the_key_opens_everything_and_health_is_open_anyway() -> None:
    for given in ("Bearer s3cret", "bearer  s3cret "):
        assert (await get("/metrics", headers={"authorization": given}, key="s3cret"))[0] == 200
        assert (await get("/api/replicas/a", method="DELETE", headers={"authorization": given}, key="s3cret"))[0] == 202
    for path in ("/healthz", "/readyz"):
        assert (await get(path, key="s3cret"))[0] == 200


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "127.0.0.1:8081"}, True),
        ({"host": "admin.example"}, True),
        ({"host": "127.0.0.1:8081", "origin": "http://127.0.0.1:8081"}, True),
        ({"host": "[::1]:8081", "origin": "http://[::1]:8081", "sec-fetch-site": "same-origin"}, True),
        ({"host": "localhost:8081", "origin": "http://localhost:8081"}, True),
        ({"host": "127.0.0.1:8081", "origin": "http://evil.example"}, False),
        ({"host": "127.0.0.1:8081", "origin": "http://127.0.0.1:9999"}, False),
        ({"host": "127.0.0.1:8081", "origin": "null"}, False),
        ({"host": "evil.example:8081", "origin": "http://evil.example:8081"}, False),
        ({"host": "127.0.0.1:8081", "sec-fetch-site": "cross-site"}, False),
        ({"host": "127.0.0.1:8081", "sec-fetch-site": "same-site"}, False),
    ],
)
async def test_pages_of_other_sites_cannot_change_the_fleet(headers: dict[str, str], allowed: bool) -> None:
    for method, path in EVERY_PAGE[2:6]:
        membership = Recorder()
        status, _, _ = await get(path, method=method, headers=headers, membership=membership, sent_body=b"{}")
        assert ((status in (201, 202)), bool(membership.asked)) == (allowed, allowed)
    assert (await get("/metrics", headers=headers))[0] == 200


async def test_decisions_are_json_and_filters_are_checked() -> None:
    status, kind, body = await get("/api/decisions?replica=r1&request_id=x&limit=5")
    assert (status, kind, json.loads(body)) == (200, "application/json", {"decisions": []})


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=-1", "limit=99999", "limit=٣", "colour=red", "limit="])
async def test_a_filter_that_makes_no_sense_is_refused_with_a_hint(query: str) -> None:
    status, _, body = await get(f"/api/decisions?{query}")
    assert status == 422
    assert json.loads(body)["error"]["hint"]
