"""Which paths reach a replica: a literal table, matched byte for byte, so that no spelling of a path gets round it."""

import re
from dataclasses import dataclass

from poise.wire.stream_end import StreamEnd


@dataclass(frozen=True, slots=True)
class Route:
    """One path that the data port knows.

    `reads_json`: the body is JSON and names model, session and prompt. `generates`: the answer is JSON with finish
    reasons, held until it is known not to have been aborted. `local`: the gateway answers itself. `timed`: its times
    count as the model's, as those of routes that run no model do not.
    """

    name: str
    methods: tuple[bytes, ...] = (b"POST",)
    reads_json: bool = True
    generates: bool = False
    local: bool = False
    timed: bool = True
    stream_end: StreamEnd = StreamEnd.ANY

    @property
    def makes_responses(self) -> bool:
        """Whether an engine may store the answer, to go on from it later."""
        return self.stream_end is StreamEnd.RESPONSE_COMPLETED

    @property
    def is_stored(self) -> bool:
        """Whether it is about an answer that an engine has stored, so that it names no model."""
        return self.name == "responses" and not self.reads_json


_CHAT = Route("chat", generates=True, stream_end=StreamEnd.DONE)
_COMPLETIONS = Route("completions", generates=True, stream_end=StreamEnd.DONE)
_RESPONSES = Route("responses", generates=True, stream_end=StreamEnd.RESPONSE_COMPLETED)
_STORED_RESPONSE = Route("responses", methods=(b"GET", b"DELETE"), reads_json=False, timed=False)
_CANCEL_RESPONSE = Route("responses", reads_json=False, timed=False)
_MESSAGES = Route("messages", generates=True, stream_end=StreamEnd.MESSAGE_STOP)
_EMBEDDINGS = Route("embeddings")
_RERANK = Route("rerank")
_SCORE = Route("score")
_CLASSIFY = Route("classify")
_AUDIO_FORM = Route("audio", reads_json=False)
_IMAGE_FORM = Route("images", reads_json=False)
_GET = (b"GET", b"HEAD")
_MODEL = Route("models", methods=_GET, reads_json=False, local=True)

ROUTES: dict[bytes, Route] = {
    b"/v1/chat/completions": _CHAT,
    b"/v1/completions": _COMPLETIONS,
    b"/v1/embeddings": _EMBEDDINGS,
    b"/v1/responses": _RESPONSES,
    b"/v1/messages": _MESSAGES,
    b"/v1/messages/count_tokens": Route("count_tokens", timed=False),
    b"/v1/rerank": _RERANK,
    b"/v2/rerank": _RERANK,
    b"/rerank": _RERANK,
    b"/v1/score": _SCORE,
    b"/score": _SCORE,
    b"/v1/classify": _CLASSIFY,
    b"/classify": _CLASSIFY,
    b"/pooling": Route("pooling"),
    b"/tokenize": Route("tokenize", timed=False),
    b"/detokenize": Route("detokenize", timed=False),
    b"/v1/audio/transcriptions": _AUDIO_FORM,
    b"/v1/audio/translations": _AUDIO_FORM,
    b"/v1/audio/speech": Route("speech"),
    b"/v1/images/generations": Route("images"),
    b"/v1/images/edits": _IMAGE_FORM,
    b"/v1/images/variations": _IMAGE_FORM,
    b"/v1/realtime": Route("realtime", methods=(b"GET",), reads_json=False, timed=False),
    b"/v1/models": _MODEL,
    b"/health": Route("health", methods=_GET, reads_json=False, local=True),
    b"/ready": Route("ready", methods=_GET, reads_json=False, local=True),
}

_RESPONSE_ID = re.compile(rb"/v1/responses/[A-Za-z0-9_-]{1,128}(/cancel|/input_items)?")
_MODEL_PREFIX = b"/v1/models/"


def find_route(path: bytes) -> Route | None:
    """The route of `path` (without its query), None if nothing is served there. Nothing is decoded or normalised."""
    route = ROUTES.get(path)
    if route is not None:
        return route
    if path.startswith(_MODEL_PREFIX) and len(path) > len(_MODEL_PREFIX):
        return _MODEL
    match = _RESPONSE_ID.fullmatch(path)
    if match is None:
        return None
    return _CANCEL_RESPONSE if match.group(1) == b"/cancel" else _STORED_RESPONSE
