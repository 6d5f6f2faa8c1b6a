"""What the gateway answers itself: its health, the merged model list, preflight requests, and what is not served."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote_to_bytes

from poise.core.errors import Refusal
from poise.proxy.request import IncomingRequest
from poise.proxy.response import allows_origin
from poise.proxy.routes import Route, find_route
from poise.wire.http import error_body

if TYPE_CHECKING:
    from poise.proxy.data_path import DataPath


class ModelList(Protocol):
    """The models of all replicas, merged, from memory."""

    def page(self) -> bytes | None:
        """The body of `GET /v1/models`, None if no replica has ever answered."""

    def entry(self, name: str) -> bytes | None:
        """The body of `GET /v1/models/{name}`, None if no replica serves it."""


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """A JSON answer that is not an error."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


UNKNOWN_PATH = Refusal(
    404, "unknown_path", "the gateway serves nothing at this path; paths are matched exactly", "caller"
)
METHOD_NOT_ALLOWED = Refusal(405, "method_not_allowed", "this path does not take this method", "caller")
WRONG_HOSTS = Refusal(
    400, "bad_request", "a request has exactly one Host header, with a host and perhaps a port", "caller"
)
UNKNOWN_CODING = Refusal(501, "unknown_transfer_coding", "the only transfer coding taken is chunked", "caller")
NOT_READY = Refusal(503, "not_ready", "no replica can take a request now", "gateway", retry_after_s=1)
NO_MODELS = Refusal(503, "no_models", "no replica has listed its models yet", "gateway", retry_after_s=1)
UNKNOWN_MODEL = Refusal(404, "model_not_found", "no replica serves this model", "caller")
NO_KEY = Refusal(401, "invalid_api_key", "the API key is missing or not known to the gateway", "caller")
ORIGIN_NOT_ALLOWED = Refusal(403, "origin_not_allowed", "this origin may not call the gateway from a browser", "caller")


def local_answer(path: "DataPath", request: IncomingRequest) -> LocalAnswer | Refusal | None:
    """The gateway's own answer to `request`, None if it is for a replica. Sets the request's route and key name."""
    if request.hosts != 1 and not (request.http10 and request.hosts == 0):
        request.keep_alive = False
        return WRONG_HOSTS
    if request.coding not in (b"", b"chunked"):
        request.keep_alive = False  # what follows may be a body to others
        return UNKNOWN_CODING
    route = find_route(request.path)
    if route is None:
        return UNKNOWN_PATH
    request.route = route
    if request.method == b"OPTIONS":
        return _options(path, request, route)
    if request.method not in route.methods:
        allow = (b"allow", b", ".join((*route.methods, b"OPTIONS")))
        return LocalAnswer(405, error_body(METHOD_NOT_ALLOWED), (allow,))
    if path.keys is not None and route.name not in ("health", "ready"):
        for _, credential in request.credentials:
            request.key = request.key or path.keys.authenticate(credential)
        if request.key is None:
            return NO_KEY
    return _own_resource(path, request, route) if route.local else None


def _own_resource(path: "DataPath", request: IncomingRequest, route: Route) -> LocalAnswer | Refusal:
    if route.name == "health":
        return LocalAnswer(200, b'{"status":"ok"}')
    if route.name == "ready":
        return LocalAnswer(200, b'{"status":"ready"}') if path.is_ready else NOT_READY
    page = path.models.page() if path.models is not None else None
    if page is None:
        return NO_MODELS
    if request.path == b"/v1/models":
        return LocalAnswer(200, page)
    assert path.models is not None
    name = unquote_to_bytes(request.path.removeprefix(b"/v1/models/"))
    entry = path.models.entry(name.decode("utf-8", "replace"))
    return LocalAnswer(200, entry) if entry is not None else UNKNOWN_MODEL


def _options(path: "DataPath", request: IncomingRequest, route: Route) -> LocalAnswer | Refusal:
    methods = b", ".join((*route.methods, b"OPTIONS"))
    if request.origin is None:
        return LocalAnswer(204, b"", ((b"allow", methods),))
    cors = path.settings.cors
    if not allows_origin(cors, request.origin):
        return ORIGIN_NOT_ALLOWED
    headers = (
        (b"access-control-allow-methods", methods),
        (b"access-control-allow-headers", ", ".join(cors.allow_headers).encode()),
        (b"access-control-max-age", b"%d" % cors.max_age_s),
    )
    return LocalAnswer(204, b"", headers)
