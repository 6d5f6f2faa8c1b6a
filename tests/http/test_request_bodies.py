"""Bodies are the engine's to read: what the gateway cannot read it passes on as it is."""

import gzip
import json

import pytest

from poise.core.request import Outcome
from support.apis import CHAT
from support.gateway import gateway
from support.http_bytes import request, to_json
from support.scripted_replica import ScriptedReplica
from support.scripts import answers, echoes

BODY = CHAT.request_body(stream=False)


async def test_a_compressed_body_is_passed_on_as_it_is() -> None:
    packed = gzip.compress(BODY)
    async with ScriptedReplica(echoes()) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=packed, headers=[("Content-Encoding", "gzip")]))
        assert (got.status, bytes(got.body)) == (200, packed)
        assert replica.requests[0].head.value("content-encoding") == b"gzip"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"x"', b"[" * 100_000, b'{"model":1,"stream":"yes"}'], ids=repr
)
async def test_a_body_that_cannot_be_read_is_the_engines_to_refuse(body: bytes) -> None:
    error = to_json({"error": {"message": "JSON decode error", "type": "Bad Request", "code": 400}})
    async with ScriptedReplica(answers(400, json.loads(error))) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=body))
        assert (got.status, bytes(got.body), replica.requests[0].body) == (400, error, body)
        assert poise.outcomes == {Outcome.CALLER_ERROR: 1}


async def test_a_form_with_a_file() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + bytes(range(256)) * 900
    body += b"\r\n--b--\r\n"
    async with ScriptedReplica(echoes()) as replica, gateway(replica) as poise:
        headers = [("Content-Type", "multipart/form-data; boundary=b")]
        got = await poise.ask(request("/v1/audio/transcriptions", body, headers=headers))
        assert (got.status, bytes(got.body)) == (200, body)
        assert replica.requests[0].head.value("content-type") == b"multipart/form-data; boundary=b"
