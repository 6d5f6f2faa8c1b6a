"""Who may use the admin port: whoever has its key; where it has none, whoever can reach it but other sites' pages."""

import hmac
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from poise.admin.control import problem
from poise.core.secret import Secret

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
READING = frozenset({"GET", "HEAD", "OPTIONS"})


class AdminGuard:
    """Middleware. With a `key`, everything but `OPEN_PATHS` asks for it as `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, key: Secret | None) -> None:
        self._app = app
        self._key = None if key is None else key.reveal().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            headers = Headers(scope=scope)
            refusal = None
            if self._key is not None and not self._has_key(headers):
                hint = "send the admin key as Authorization: Bearer KEY"
                refusal = problem(401, "unauthorized", "the admin key is missing or wrong", hint, **_CHALLENGE)
            elif self._key is None and scope["method"] not in READING and is_from_elsewhere(headers):
                refusal = problem(403, "forbidden", "pages of other sites may not change the fleet")
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        assert self._key is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._key)
        return scheme.lower() == "bearer" and right


_CHALLENGE = {"www-authenticate": "Bearer"}


def is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether a browser sends this for a page that is not the admin port's own.

    A page's `Origin` is then not the host it speaks to; or that host is a name that somebody made to lead here.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin, host = headers.get("origin"), headers.get("host", "")
    return origin is not None and (urlsplit(origin).netloc != host or not _is_own_name(host))


def _is_own_name(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
