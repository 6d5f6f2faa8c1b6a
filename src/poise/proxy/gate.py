"""What is looked at in a request that has been read whole, before it is placed."""

from time import monotonic
from typing import TYPE_CHECKING

from poise.admission.api_key import priority_of
from poise.core.errors import Refusal
from poise.core.request import RequestFacts
from poise.fleet.fleet import expected_tokens
from poise.proxy.local import NO_KEY
from poise.proxy.naming import model_in_form, settle_model
from poise.wire.facts import facts_from_json, facts_without_json

if TYPE_CHECKING:
    from poise.fleet.replica import Replica
    from poise.proxy.client import ClientConnection
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest

MODEL_NOT_ALLOWED = Refusal(
    404, "model_not_found", "the model does not exist, or this API key may not use it", "caller"
)


def check_request(path: "DataPath", client: "ClientConnection", request: "IncomingRequest") -> RequestFacts | Refusal:
    """What placement may know of `request`, or why it is not placed at all. May give its model another name."""
    assert request.route is not None
    if request.route.reads_json and not request.encoded:
        facts = facts_from_json(request.body, request.session_key, request.user_key)
    else:
        facts = facts_without_json(request.session_key, None if request.encoded else model_in_form(request))
    key = request.key
    if key is not None and not key.may_use(facts.model) and not request.route.is_stored:
        return MODEL_NOT_ALLOWED
    settled = settle_model(path, client, request, facts) if facts.model else facts
    if isinstance(settled, Refusal):
        return settled
    if request.route.is_stored:
        request.home = _home(path, request.path.split(b"/")[3].decode())
    elif facts.previous_response:
        request.home = _home(path, facts.previous_response)
    return _turned_away(path, request, settled) or settled


def _home(path: "DataPath", response_id: str) -> "Replica | None":
    """The replica that has stored the response of this id."""
    name = path.homes.find(response_id, monotonic())
    return None if name is None else path.fleet.named(name)


def _turned_away(path: "DataPath", request: "IncomingRequest", facts: RequestFacts) -> Refusal | None:
    """Why the caller may not send this now. Sets the request's priority, and charges it to the caller's key."""
    priority = priority_of(request.priority_header, request.key)
    if isinstance(priority, Refusal):
        return priority
    request.priority = priority
    if request.key is None:
        return None
    use = path.key_limits.of(request.key.name)
    if use is None:  # the key has left the file since the request's head came
        return NO_KEY
    tokens = expected_tokens(facts)
    refusal = use.begin(tokens, monotonic())
    if refusal is None:
        request.key_use, request.charged_tokens = use, tokens
    return refusal
