"""The model that a request names: which one is meant, whether anybody may have it, and how it is named to a replica."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from poise.core.errors import Refusal
from poise.core.request import RequestFacts
from poise.wire.model_field import find_in_form, replace_in_form, replace_in_json

if TYPE_CHECKING:
    from poise.proxy.client import ClientConnection
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest

MAX_NAMES_TOLD = 20
MAX_NAME_TOLD = 80
"""Characters of a caller's own name for a model that an error repeats."""
NAME_NOT_FOUND = Refusal(
    400, "bad_request", "the body names its model in a way that the gateway cannot replace; name it once", "caller"
)


def settle_model(
    path: "DataPath", client: "ClientConnection", request: "IncomingRequest", facts: RequestFacts
) -> RequestFacts | Refusal:
    """The facts with the model that is meant, which the body then names; or why the request is not placed."""
    asked = facts.model
    assert asked is not None
    meant = path.names.resolve(asked, facts.session, path.random)
    model = _choose_model(path, meant)
    if model is None:
        return _unknown_model(path, asked)
    if model == asked:
        return facts
    body = body_for_model(request, model)
    if body is None:
        return NAME_NOT_FOUND
    client.change_body(request, body)
    request.asked_model = asked
    if model != meant:
        request.fallback_note = f", fallback to {model}"
        path.counters.fallbacks[meant, model] += 1
    return replace(facts, model=model)


def _choose_model(path: "DataPath", model: str) -> str | None:
    """The first of `model` and its fallbacks that a replica can be sent now, else the first that one may serve."""
    others = path.names.fallbacks(model)
    if not others:
        return model if path.fleet.may_serve(model) else None
    models = (model, *others)
    for candidate in models:
        if any([replica.available for replica in path.fleet.pool(candidate).replicas]):
            return candidate
    return next(iter([candidate for candidate in models if path.fleet.may_serve(candidate)]), None)


def body_for_model(request: "IncomingRequest", model: str) -> bytes | None:
    """The body of `request` with `model` as its model and all else as it is, None if it names none to be replaced."""
    assert request.route is not None
    if request.route.reads_json:
        return replace_in_json(request.body, model)
    return replace_in_form(request.body, request.header(b"content-type") or b"", model)


def model_in_form(request: "IncomingRequest") -> str | None:
    """The model that a multipart form names, None if the request is no such form or names none."""
    if not request.body:
        return None
    span = find_in_form(request.body, request.header(b"content-type") or b"")
    return None if span is None else request.body[span[0] : span[1]].decode("utf-8", "replace")


def _unknown_model(path: "DataPath", asked: str) -> Refusal:
    if path.names.is_alias(asked):
        text = f"no replica serves what the model {asked!r} stands for now"
        return Refusal(503, "model_not_served", text, "gateway", retry_after_s=1)
    known = sorted({*path.fleet.models(), *path.names.aliases})
    more = f" and {len(known) - MAX_NAMES_TOLD} more" if len(known) > MAX_NAMES_TOLD else ""
    text = (
        f"the model {asked[:MAX_NAME_TOLD]!r} is not served here; served are {', '.join(known[:MAX_NAMES_TOLD])}{more}"
    )
    return Refusal(404, "model_not_found", text, "caller")
