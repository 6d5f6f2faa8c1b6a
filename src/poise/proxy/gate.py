"""What is looked at in a request that has been read whole, before it is placed."""

from typing import TYPE_CHECKING

from poise.core.errors import Refusal
from poise.core.request import RequestFacts
from poise.proxy.naming import model_in_form, settle_model
from poise.wire.facts import facts_from_json, facts_without_json

if TYPE_CHECKING:
    from poise.proxy.client import ClientConnection
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest


def check_request(path: "DataPath", client: "ClientConnection", request: "IncomingRequest") -> RequestFacts | Refusal:
    """What placement may know of `request`, or why it is not placed at all. May give its model another name."""
    assert request.route is not None
    if request.encoded:
        return facts_without_json(request.session_key)
    if request.route.reads_json:
        facts = facts_from_json(request.body, request.session_key, request.user_key)
    else:
        facts = facts_without_json(request.session_key, model_in_form(request))
    return settle_model(path, client, request, facts) if facts.model else facts
