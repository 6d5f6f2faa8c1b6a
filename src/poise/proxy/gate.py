"""What is looked at in a request that has been read whole, before it is placed."""

from typing import TYPE_CHECKING

from poise.core.errors import Refusal
from poise.core.request import RequestFacts
from poise.wire.facts import facts_from_json, facts_without_json

if TYPE_CHECKING:
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest
    from poise.proxy.routes import Route


def check_request(path: "DataPath", request: "IncomingRequest", route: "Route") -> RequestFacts | Refusal:
    """What placement may know of `request`, or why it is not placed at all."""
    if route.reads_json and not request.encoded:
        return facts_from_json(request.body, request.session_key, request.user_key)
    return facts_without_json(request.session_key)
