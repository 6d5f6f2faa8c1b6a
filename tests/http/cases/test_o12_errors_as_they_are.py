"""The engine's own error reaches the caller as it is; the gateway's own errors say what happened, and hide where."""

import json

import openai
import pytest

from poise.core.request import Outcome
from support.apis import APIS, CHAT, Api
from support.gateway import gateway, short_settings
from support.http_bytes import answer, request, to_json
from support.scripted_replica import ScriptedReplica, closed_port
from support.scripts import answers_error, hangs, writes

STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
CLASSES = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
}
OWN_WORDS = "This model's maximum context length is 2048 tokens. However, your request has 5012 input tokens. 中"


async def raised_by(client: openai.AsyncOpenAI, *, stream: bool) -> openai.APIStatusError:
    """What the stock client raises."""
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=stream)
    return caught.value


@STREAM_OR_NOT
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 415, 418, 422, 429])
async def test_a_callers_error_is_passed_on_unchanged_and_not_tried_again(api: Api, status: int, stream: bool) -> None:
    body = to_json({"error": {"message": OWN_WORDS, "type": "BadRequestError", "param": None, "code": status}})
    headers = [("Retry-After", "7"), ("X-Engine", "1")]
    script = writes(answer(status, body, headers=headers, content_type="application/json; charset=utf-8"))
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        got = await poise.ask(request(api.path, api.request_body(stream=stream)))
        assert (got.status, bytes(got.body)) == (status, body)
        assert got.value("content-type") == b"application/json; charset=utf-8"
        assert got.value("retry-after") == b"7"
        assert got.value("x-engine") == b"1"
        assert len(replica.requests) == 1
        assert poise.outcomes == {Outcome.CALLER_ERROR: 1}
        first = poise.fleet.named("r1")
        assert first is not None and first.outcomes[Outcome.FAILED] == 0


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_what_can_never_work_is_sent_to_one_replica_only(status: int) -> None:
    async with ScriptedReplica(answers_error(status)) as first, ScriptedReplica(answers_error(status)) as second:
        async with gateway(first, second) as poise:
            assert (await poise.ask(request(body=CHAT.request_body(stream=True)))).status == status
            assert (len(first.requests), len(second.requests)) == (1, 0)


@STREAM_OR_NOT
async def test_the_engines_500_once_retries_are_used_up(stream: bool) -> None:
    pages = [b"<html><h1>Internal Server Error</h1>1</html>", b"<html>2</html>"]
    async with (
        ScriptedReplica(writes(answer(500, pages[0], content_type="text/html"))) as first,
        ScriptedReplica(writes(answer(500, pages[1], content_type="text/html"))) as second,
        gateway(first, second) as poise,
    ):
        got = await poise.ask(request(body=CHAT.request_body(stream=stream)))
        assert got.status == 500
        assert bytes(got.body) in pages
        assert got.value("content-type") == b"text/html"
        assert (len(first.requests), len(second.requests)) == (1, 1)
        assert poise.outcomes == {Outcome.FAILED: 1}


@STREAM_OR_NOT
async def test_a_refused_connection_is_502(stream: bool) -> None:
    with closed_port() as sock:
        port = sock.getsockname()[1]
        async with gateway(port) as poise, poise.openai() as client:
            got = await poise.ask(request(body=CHAT.request_body(stream=stream)))
            assert_own_error(got.status, got.body, 502, port)
            assert got.value("content-type") == b"application/json"
            assert isinstance(await raised_by(client, stream=stream), openai.InternalServerError)
            assert poise.outcomes == {Outcome.FAILED: 2}


@STREAM_OR_NOT
async def test_no_answer_in_time_is_504(stream: bool) -> None:
    settings = short_settings(first_output_s=0.3, total_s=0.6)
    async with ScriptedReplica(hangs) as replica, gateway(replica, settings=settings) as poise:
        async with poise.openai() as client:
            error = await raised_by(client, stream=stream)
            assert isinstance(error, openai.InternalServerError)
            assert_own_error(error.status_code, error.response.content, 504, replica.port)
            await replica.requests[0].wire.wait_closed()
            assert poise.outcomes == {Outcome.FAILED: 1}


async def test_no_replica_at_all_is_503() -> None:
    async with gateway() as poise:
        got = await poise.ask(request(body=CHAT.request_body(stream=False)))
        assert_own_error(got.status, got.body, 503)


@STREAM_OR_NOT
@pytest.mark.parametrize("status", CLASSES)
async def test_the_stock_client_raises_its_matching_class(status: int, stream: bool) -> None:
    async with ScriptedReplica(answers_error(status, OWN_WORDS)) as replica, gateway(replica) as poise:
        async with poise.openai() as client:
            error = await raised_by(client, stream=stream)
            assert type(error) is CLASSES[status]
            assert OWN_WORDS in str(error)


def assert_own_error(got: int, body: bytes, status: int, *ports: int) -> None:
    """An error of the gateway's own: OpenAI's shape, the expected status, and no address."""
    assert got == status
    error = json.loads(bytes(body))["error"]
    assert error["message"] and error["type"] and error["code"]
    for secret in ("127.0.0.1", "localhost", *map(str, ports)):
        assert secret not in str(error)
