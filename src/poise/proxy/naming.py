"""The model that a request names: which one is meant, whether anybody may have it, and how it is named to a replica."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from poise.core.errors import Refusal
from poise.core.request import RequestFacts
from poise.wire.facts import MODEL_NAME_CHARS
from poise.wire.model_field import find_in_form, replace_in_form, replace_in_json

if TYPE_CHECKING:
    from poise.proxy.caller import Caller
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest

MAX_NAMES_TOLD = 20
MAX_NAME_BYTES = 4 * (MODEL_NAME_CHARS + 1)
"""Enough to see that a name is longer than any may be."""
MAX_NAME_TOLD = 80
"""Characters of a caller's own name for a model that an error repeats."""
NAME_NOT_FOUND = Refusal(
    400, "bad_request", "the body names its model in a way that the gateway cannot replace; name it once", "caller"
)


def settle_model(
    path: "DataPath", client: "Caller", request: "IncomingRequest", facts: RequestFacts
) -> RequestFacts | Refusal:
    """The facts with the model that is meant, which the body then names; or why the request is not placed."""
    asked = facts.model
    assert asked is not None
    meant = path.names.resolve(asked, facts.session, path.random)
    model = _choose_model(path, meant)
    if model is None:
        return _unknown_model(path, asked)
    others = path.names.fallbacks(meant)
    request.fallbacks = others[others.index(model) + 1 :] if model in others else others
    if model != meant:
        turned = turn_to(path, client, request, meant, model)
    else:
        turned = model == asked or _rename(client, request, model)
    if not turned:
        return NAME_NOT_FOUND
    if model == asked:
        return facts
    request.asked_model = asked
    return replace(facts, model=model)


def turn_to(path: "DataPath", caller: "Caller", request: "IncomingRequest", model: str | None, other: str) -> bool:
    """Let `other` answer instead of `model`. Returns whether the body could be made to name it."""
    if not _rename(caller, request, other):
        return False
    request.asked_model = request.asked_model or model
    request.fallback_note = f", fallback to {other}"
    path.counters.fallbacks[model or "", other] += 1
    return True


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


def _rename(caller: "Caller", request: "IncomingRequest", model: str) -> bool:
    """Let the body name `model`, with all else as it is. False if it names none that could be replaced."""
    assert request.route is not None
    if request.route.reads_json:
        body = replace_in_json(request.body, model)
    else:
        body = replace_in_form(request.body, request.header(b"content-type") or b"", model)
    if body is None:
        return False
    caller.change_body(request, body)
    return True


def model_in_form(request: "IncomingRequest") -> str | None:
    """The model that a multipart form names, None if the request is no such form or names none."""
    if not request.body:
        return None
    span = find_in_form(request.body, request.header(b"content-type") or b"")
    if span is None:
        return None
    end = min(span[1], span[0] + MAX_NAME_BYTES)
    return request.body[span[0] : end].decode("utf-8", "replace")


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
