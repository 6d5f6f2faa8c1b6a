"""The simulated vLLM server over real sockets: what clients, gateways and scrapers of a real one rely on."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from poise.engine.settings import EngineSettings
from poise.engine.simulated_engines import SimulatedEngines, serve_engines

BUSY = "The engine is currently busy and cannot accept new requests."
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def engines(**settings: object) -> AsyncIterator[SimulatedEngines]:
    async with SimulatedEngines(EngineSettings(port=0, **settings)) as started:  # type: ignore[arg-type]
        try:
            yield started
        finally:
            while Raw.opened:
                Raw.opened.pop().close()


def client_of(started: SimulatedEngines) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=started.urls[0] + "/v1", api_key="none", max_retries=0, timeout=20)


def body(tokens: int = 8, **more: object) -> dict[str, object]:
    message = {"role": "user", "content": "Say something about queues."}
    return {"model": "poise-sim", "messages": [message], "max_tokens": tokens, "ignore_eos": True, **more}


def encode(method: str, path: str, content: object = None, headers: dict[str, str] | None = None) -> bytes:
    raw = b"" if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = {"Host": "engine", **({"Content-Type": "application/json"} if raw else {}), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


class Raw:
    """A connection of which every byte is seen."""

    opened: ClassVar[list["Raw"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, started: SimulatedEngines, number: int = 0) -> "Raw":
        cls.opened.append(cls(*await asyncio.open_connection(started.settings.host, started.ports[number])))
        return cls.opened[-1]

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def content(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await asyncio.wait_for(self.reader.readexactly(int(headers["content-length"])), 10)
        chunks = b""
        while size := int(await asyncio.wait_for(self.reader.readline(), 10), 16):
            chunks += (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"
        return chunks

    async def ask(self, *request: object, **more: object) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(encode(*request, **more))  # type: ignore[arg-type]
        status, headers = await self.head()
        return status, headers, await self.content(headers)

    def close(self) -> None:
        self.writer.close()


async def ask(started: SimulatedEngines, *request: object, **more: object) -> tuple[int, dict[str, str], bytes]:
    raw = await Raw.to(started)
    try:
        return await raw.ask(*request, **more)
    finally:
        raw.close()


async def metric(started: SimulatedEngines, name: str) -> float:
    page = (await ask(started, "GET", "/metrics"))[2].decode()
    match = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    assert match, f"{name} is not on the page"
    return float(match.group(1))


def gauge(name: str) -> str:
    return f'vllm:{name}{{engine="0",model_name="poise-sim"}}'


async def until(started: SimulatedEngines, name: str, value: float, deadline_s: float = 5.0) -> None:
    end_s = time.monotonic() + deadline_s
    while (now := await metric(started, name)) != value:
        assert time.monotonic() < end_s, f"{name} is {now}, not {value}"
        await asyncio.sleep(0.01)


def events(stream: bytes) -> list[bytes]:
    return [line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: ")]


# -- the official client ---------------------------------------------------------------------------------------------


async def test_the_openai_client_streamed_and_not_gets_the_same_words() -> None:
    async with engines(speed=20) as started, client_of(started) as client:
        request = {"model": "poise-sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
        plain = await client.chat.completions.create(**request, extra_body={"ignore_eos": True})
        stream = await client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert plain.choices[0].message.content == text
    assert plain.choices[0].finish_reason == "length"
    assert len(text) == 4 * 12
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert plain.usage and usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (plain.usage.prompt_tokens, 12)
    assert usage.total_tokens == usage.prompt_tokens + 12


async def test_the_other_apis_answer_the_openai_client() -> None:
    async with engines(speed=20) as started, client_of(started) as client:
        completion = await client.completions.create(model="poise-sim", prompt="Once", max_tokens=5)
        streamed = await client.completions.create(model="poise-sim", prompt="Once", max_tokens=5, stream=True)
        pieces = [chunk.choices[0].text async for chunk in streamed]
        assert completion.choices[0].text == "".join(pieces)
        response = await client.responses.create(model="poise-sim", input="Once", max_output_tokens=6)
        assert (len(response.output_text), response.status) == (24, "incomplete")
        stream = await client.responses.create(model="poise-sim", input="Once", max_output_tokens=6, stream=True)
        kinds = [event.type async for event in stream]
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert kinds.count("response.output_text.delta") == 6
        assert kinds[-1] == "response.completed"
        embedding = await client.embeddings.create(model="poise-sim", input="Once")
        assert len(embedding.data[0].embedding) == 8
        assert [model.id async for model in await client.models.list()] == ["poise-sim"]


async def test_an_answer_ends_by_itself_unless_it_must_not() -> None:
    async with engines(speed=200, output_tokens_mean=20) as started, client_of(started) as client:
        ends = {}
        for number in range(20):
            answer = await client.chat.completions.create(
                model="poise-sim", messages=[{"role": "user", "content": f"Question {number}"}], max_tokens=30
            )
            assert answer.usage
            ends.setdefault(answer.choices[0].finish_reason, []).append(answer.usage.completion_tokens)
    assert set(ends) == {"stop", "length"}
    assert all(tokens == 30 for tokens in ends["length"])
    assert all(1 <= tokens < 30 for tokens in ends["stop"]) and len(set(ends["stop"])) > 3


async def test_the_second_turn_finds_the_first_one_and_its_answer_in_the_cache() -> None:
    async with engines(speed=20) as started, client_of(started) as client:
        messages = [{"role": "user", "content": "Tell me of blocks. " * 30}]
        options = {"model": "poise-sim", "max_tokens": 40, "extra_body": {"ignore_eos": True}}
        first = await client.chat.completions.create(messages=messages, **options)  # type: ignore[call-overload]
        answer = {"role": "assistant", "content": first.choices[0].message.content}
        turn = [*messages, answer, {"role": "user", "content": "And then?"}]
        second = await client.chat.completions.create(messages=turn, **options)
        other = await client.chat.completions.create(
            messages=turn, **{**options, "extra_body": {"ignore_eos": True, "cache_salt": "other"}}
        )
        hits = await metric(started, gauge("prefix_cache_hits_total"))
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert first.usage.prompt_tokens < cached <= first.usage.prompt_tokens + 40
    assert cached % 16 == 0 and hits == cached
    assert other.usage.prompt_tokens_details.cached_tokens == 0


# -- streams and refusals --------------------------------------------------------------------------------------------


async def test_a_streams_head_comes_while_its_request_still_waits() -> None:
    async with engines(speed=1, max_num_seqs=1) as started:
        first, second = await Raw.to(started), await Raw.to(started)
        first.writer.write(encode("POST", CHAT, body(60, stream=True)))
        await until(started, gauge("num_requests_running"), 1)
        second.writer.write(encode("POST", CHAT, body(2, stream=True)))
        began_s = time.monotonic()
        status, headers = await second.head()
        assert time.monotonic() - began_s < 0.2
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        await until(started, gauge("num_requests_waiting"), 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.reader.readexactly(1), 0.1)
        assert events(await second.content(headers))[-1] == b"[DONE]"


async def test_a_full_queue_refuses_at_once_with_503() -> None:
    async with engines(max_num_seqs=1, max_num_queued_reqs=2) as started:
        holders = [await Raw.to(started) for _ in range(2)]
        for holder in holders:
            holder.writer.write(encode("POST", CHAT, body(200, stream=True)))
        await until(started, gauge("num_requests_waiting"), 1)
        for stream in (False, True):
            status, headers, answer = await ask(started, "POST", CHAT, body(stream=stream))
            error = json.loads(answer)["error"]
            assert (status, error["type"], error["code"]) == (503, "Service Unavailable", 503)
            assert error["message"].startswith(BUSY) and "retry-after" not in headers
        status, _, answer = await ask(started, "POST", "/v1/messages", body())
        assert (status, json.loads(answer)["type"]) == (503, "error")
        assert (await ask(started, "GET", "/health"))[0] == 200


async def test_a_burst_is_refused_inside_its_streams() -> None:
    async with engines(speed=5, max_num_seqs=4, max_num_queued_reqs=6) as started:
        burst = [await Raw.to(started) for _ in range(40)]
        for raw in burst:
            raw.writer.write(encode("POST", CHAT, body(20, stream=True)))
        answers = []
        for raw in burst:
            status, headers = await raw.head()
            answers.append((status, events(await raw.content(headers))))
        refused = [got for status, got in answers if b'"error"' in got[0]]
        assert {status for status, _ in answers} == {200}
        assert len(refused) == 34
        assert all(json.loads(got[0])["error"]["code"] == 503 and got[1:] == [b"[DONE]"] for got in refused)
        name = 'vllm:admission_rejections_total{model_name="poise-sim",reason="max_num_queued_reqs"}'
        assert await metric(started, name) == 34


async def test_a_plain_request_of_a_burst_gets_a_plain_503() -> None:
    async with engines(speed=5, max_num_queued_reqs=1) as started:
        burst = await asyncio.gather(*(ask(started, "POST", CHAT, body(20)) for _ in range(5)))
        assert sorted(status for status, *_ in burst) == [200, 503, 503, 503, 503]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("half_close", [True, False])
async def test_a_caller_who_leaves_ends_running_and_waiting_requests(stream: bool, half_close: bool) -> None:
    async with engines(max_num_seqs=1) as started:
        callers = [await Raw.to(started) for _ in range(3)]
        for caller in callers:
            caller.writer.write(encode("POST", CHAT, body(4000, stream=stream)))
            await asyncio.sleep(0.05)
        await until(started, gauge("num_requests_running"), 1)
        await until(started, gauge("num_requests_waiting"), 2)
        assert json.loads((await ask(started, "GET", "/load"))[2]) == {"server_load": 3}
        for caller in reversed(callers):
            if half_close:
                caller.writer.write_eof()
            else:
                caller.close()
        await until(started, gauge("num_requests_waiting"), 0, 1.0)
        await until(started, gauge("num_requests_running"), 0, 1.0)
        await until(started, gauge("kv_cache_usage_perc"), 0, 1.0)
        abort = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="poise-sim"}'
        assert await metric(started, abort) == 0


async def test_a_caller_who_leaves_before_the_queue_is_reached_is_never_queued() -> None:
    async with engines(speed=0.05) as started:
        caller = await Raw.to(started)
        caller.writer.write(encode("POST", CHAT, body(50, stream=True)))
        await caller.head()
        caller.close()
        await asyncio.sleep(0.5)
        assert await metric(started, gauge("prefix_cache_queries_total")) == 0


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "status", "kind", "param"),
    [
        (b'{"model": "poise-sim", "messages": [', 400, "Bad Request", "body"),
        (b"[]", 400, "Bad Request", "body"),
        (b'{"messages": "\xff"}', 400, "Bad Request", "body"),
        ({"model": "poise-sim"}, 400, "Bad Request", "body"),
        (body(max_tokens="five"), 400, "Bad Request", "body"),
        (body(0), 400, "BadRequestError", "max_tokens"),
        (body(-1), 400, "BadRequestError", "max_tokens"),
        (body(100_000_000), 400, "BadRequestError", "max_tokens"),
        (body(n=0), 400, "BadRequestError", None),
        (body(n=2), 400, "BadRequestError", None),
        (body(temperature=-1), 400, "BadRequestError", "temperature"),
        (body(stream_options={"include_usage": True}), 400, "BadRequestError", "stream_options"),
        (body(messages=[]), 400, "BadRequestError", None),
        (body(messages=[{"role": "user", "content": "word " * 200_000}]), 400, "BadRequestError", "input_tokens"),
        (
            body(messages=[{"role": "user", "content": "w " * 400_000}], stream=True),
            400,
            "BadRequestError",
            "input_tokens",
        ),
        (body(model="nope"), 404, "NotFoundError", "model"),
        (body(model="nope", stream=True), 404, "NotFoundError", "model"),
    ],
)
async def test_what_cannot_be_done_is_refused_as_vllm_does(
    content: object, status: int, kind: str, param: str | None
) -> None:
    async with engines() as started:
        got, headers, answer = await ask(started, "POST", CHAT, content)
    error = json.loads(answer)["error"]
    assert (got, error["type"], error["param"], error["code"]) == (status, kind, param, status)
    assert headers["content-type"] == "application/json" and error["message"]


async def test_a_body_that_does_not_say_it_is_json_is_refused() -> None:
    async with engines() as started:
        status, _, answer = await ask(started, "POST", CHAT, body(), headers={"Content-Type": "text/plain"})
        assert status == 400 and b"Unsupported Media Type" in answer
        assert (await ask(started, "POST", CHAT))[0] == 400


async def test_a_missing_model_is_served() -> None:
    async with engines(speed=20) as started:
        assert (await ask(started, "POST", CHAT, body(model=None)))[0] == 200


async def test_anthropic_routes_have_their_own_shapes() -> None:
    async with engines(speed=20) as started:
        request = {"model": "poise-sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        status, _, answer = await ask(started, "POST", "/v1/messages", {**request, "ignore_eos": True})
        message = json.loads(answer)
        assert (status, message["type"], message["stop_reason"]) == (200, "message", "max_tokens")
        assert len(message["content"][0]["text"]) == 12 and message["usage"]["output_tokens"] == 3
        _, _, stream = await ask(started, "POST", "/v1/messages", {**request, "ignore_eos": True, "stream": True})
        kinds = re.findall(rb"^event: (\w+)$", stream, re.MULTILINE)
        assert kinds == [
            b"message_start",
            b"content_block_start",
            *[b"content_block_delta"] * 3,
            b"content_block_stop",
            b"message_delta",
            b"message_stop",
        ]
        status, _, answer = await ask(started, "POST", "/v1/messages", {**request, "model": "nope"})
        assert (status, json.loads(answer)["error"]["type"]) == (404, "NotFoundError")
        status, _, answer = await ask(started, "POST", "/v1/messages/count_tokens", request)
        assert json.loads(answer) == {"input_tokens": message["usage"]["input_tokens"]}


# -- headers, ranks, connections -------------------------------------------------------------------------------------


async def test_the_request_id_becomes_the_answers_id() -> None:
    async with engines(speed=20) as started:
        _, _, answer = await ask(started, "POST", CHAT, body(), headers={"X-Request-Id": "my-id"})
        assert json.loads(answer)["id"] == "chatcmpl-my-id"
        ids = {json.loads((await ask(started, "POST", CHAT, body()))[2])["id"] for _ in range(3)}
        assert len(ids) == 3


async def test_ranks_are_chosen_checked_and_counted_apart() -> None:
    async with engines(speed=20, data_parallel_size=2) as started:
        for rank, count in (("1", 2), ("0", 1)):
            for _ in range(count):
                header = {"X-data-parallel-rank": rank}
                assert (await ask(started, "POST", CHAT, body(), headers=header))[0] == 200
        for engine, count in (("0", 1.0), ("1", 2.0)):
            name = f'vllm:request_success_total{{engine="{engine}",finished_reason="length",model_name="poise-sim"}}'
            assert await metric(started, name) == count
        too_high = {"X-data-parallel-rank": "2"}
        status, _, answer = await ask(started, "POST", CHAT, body(), headers=too_high)
        assert (status, json.loads(answer)["error"]["message"]) == (
            400,
            "data_parallel_rank 2 is out of range [0, 2).",
        )
        status, _, answer = await ask(started, "POST", CHAT, body(stream=True), headers=too_high)
        assert status == 200 and json.loads(events(answer)[0])["error"]["code"] == 400
        assert events(answer)[1] == b"[DONE]"
        assert (await ask(started, "POST", CHAT, body(), headers={"X-data-parallel-rank": "abc"}))[0] == 200


async def test_simple_routes() -> None:
    async with engines() as started:
        for method, path, status, answer in (
            ("GET", "/health", 200, b""),
            ("GET", "/ping", 200, b""),
            ("POST", "/ping", 200, b""),
            ("GET", "/version", 200, b'{"version":"0.32.0"}'),
            ("GET", "/load", 200, b'{"server_load":0}'),
            ("GET", "/nope", 404, b'{"detail":"Not Found"}'),
            ("GET", CHAT, 405, b'{"detail":"Method Not Allowed"}'),
        ):
            got = await ask(started, method, path)
            assert (got[0], got[2]) == (status, answer), path
        raw = await Raw.to(started)
        raw.writer.write(encode("HEAD", "/health"))
        status, headers = await raw.head()
        assert (status, headers["allow"], headers["content-length"]) == (405, "GET", "31")
        status, _, answer = await raw.ask("POST", "/tokenize", {"prompt": "four by four"})
        ids = json.loads(answer)["tokens"]
        assert json.loads(answer)["count"] == len(ids) == 3
        _, _, answer = await raw.ask("POST", "/detokenize", {"tokens": ids})
        assert json.loads(answer) == {"prompt": "four by four"}


async def test_requests_may_come_in_one_write_or_byte_by_byte() -> None:
    async with engines(speed=50) as started:
        raw = await Raw.to(started)
        raw.writer.write(encode("POST", CHAT, body(3)) + encode("GET", "/version") + encode("POST", CHAT, body(5)))
        tokens = []
        for _ in range(3):
            _, headers = await raw.head()
            content = json.loads(await raw.content(headers))
            tokens.append(content.get("usage", {}).get("completion_tokens"))
        assert tokens == [3, None, 5]
        for byte in encode("POST", CHAT, body(2), headers={"Expect": "100-continue"}):
            raw.writer.write(bytes([byte]))
            await raw.writer.drain()
        assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        assert (await raw.head())[0] == 200


async def test_what_is_not_http_is_refused_and_the_connection_closed() -> None:
    async with engines() as started:
        raw = await Raw.to(started)
        raw.writer.write(b"this is not http\r\n\r\n")
        assert (await raw.reader.read()).startswith(b"HTTP/1.1 400")


async def test_an_upgrade_is_not_granted() -> None:
    async with engines() as started:
        raw = await Raw.to(started)
        asked = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert (await raw.ask("GET", "/health", headers=asked))[0] == 200
        assert (await raw.ask("GET", "/version"))[2] == b'{"version":"0.32.0"}'


async def test_the_prefix_cache_can_be_emptied() -> None:
    async with engines(speed=20) as started:
        long = body(2, messages=[{"role": "user", "content": "long " * 40}])
        cached = []
        for _ in range(3):
            answer = json.loads((await ask(started, "POST", CHAT, long))[2])
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            if len(cached) == 2:
                assert (await ask(started, "POST", "/reset_prefix_cache"))[0] == 200
        assert cached[1] > 0 and cached[0] == cached[2] == 0


async def test_serving_ends_when_it_is_cancelled() -> None:
    async with engines() as started:
        port = started.ports[0]
    serving = asyncio.get_running_loop().create_task(serve_engines(EngineSettings(port=port)))
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    writer.close()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_connection_close_is_honoured() -> None:
    async with engines(speed=50) as started:
        for stream in (True, False):
            raw = await Raw.to(started)
            status, headers, _ = await raw.ask("POST", CHAT, body(stream=stream), headers={"Connection": "close"})
            assert (status, headers["connection"], await raw.reader.read()) == (200, "close", b"")


async def test_an_idle_connection_is_closed_after_five_seconds_and_a_busy_one_is_not() -> None:
    async with engines() as started:
        idle, used, busy = await Raw.to(started), await Raw.to(started), await Raw.to(started)
        busy.writer.write(encode("POST", CHAT, body(900, stream=True)))
        await asyncio.sleep(2)
        await used.ask("GET", "/health")
        began_s = time.monotonic()
        assert await idle.reader.read() == b""
        assert time.monotonic() - began_s == pytest.approx(3.0, abs=0.3)
        assert await used.reader.read() == b""
        assert time.monotonic() - began_s == pytest.approx(5.0, abs=0.3)
        _, headers = await busy.head()
        assert events(await busy.content(headers))[-1] == b"[DONE]"


# -- timing and metrics ----------------------------------------------------------------------------------------------


async def test_time_passes_as_the_profile_says_and_speed_divides_it() -> None:
    for speed in (1.0, 4.0):
        async with engines(speed=speed) as started:
            began_s = time.monotonic()
            await ask(started, "POST", CHAT, body(60))
            took_s = time.monotonic() - began_s
            first_s = await metric(started, gauge("time_to_first_token_seconds_sum"))
        planned_s = (0.015 + 60 * 0.0069) / speed  # an H100 with 8B reads its weights in 6.9 ms a step
        assert planned_s * 0.95 < took_s < planned_s + 0.25
        assert first_s == pytest.approx(0.0069 / speed, rel=0.2)


async def test_the_metrics_page_parses_has_real_size_and_true_values() -> None:
    async with engines(speed=20) as started:
        for _ in range(3):
            await ask(started, "POST", CHAT, body(10, messages=[{"role": "user", "content": "long " * 40}]))
        _, headers, page = await ask(started, "GET", "/metrics")
    assert headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert 50_000 <= len(page) <= 66_000
    families = {family.name: family for family in text_string_to_metric_families(page.decode())}
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families.values()
        for sample in family.samples
    }
    labels = (("engine", "0"), ("model_name", "poise-sim"))
    assert values["vllm:generation_tokens_total", labels] == 30
    assert values["vllm:num_requests_running", labels] == 0
    assert values["vllm:kv_cache_usage_perc", labels] == 0
    prompt_tokens = values["vllm:prompt_tokens_total", labels]
    assert prompt_tokens == values["vllm:prefix_cache_queries_total", labels] > 0
    assert values["vllm:prompt_tokens_cached_total", labels] == values["vllm:prefix_cache_hits_total", labels] > 0
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_prompt_tokens"):
        assert values[f"vllm:{name}_count", labels] == 3
        infinite = tuple(sorted((*labels, ("le", "+Inf"))))
        assert values[f"vllm:{name}_bucket", infinite] == 3
    assert values["vllm:request_prompt_tokens_sum", labels] == prompt_tokens
    assert values["vllm:inter_token_latency_seconds_count", labels] == 27
    assert values["poise_engine:steps_total", labels] == 30
    config = families["vllm:cache_config_info"].samples[0].labels
    assert int(config["num_gpu_blocks"]) * int(config["block_size"]) == int(config["kv_cache_size_tokens"])


async def test_any_model_name_can_be_served_and_measured() -> None:
    name = 'a, "b" 100% \\ c'
    async with engines(speed=20, model=name) as started:
        assert (await ask(started, "POST", CHAT, body(3, model=name)))[0] == 200
        page = (await ask(started, "GET", "/metrics"))[2].decode()
    generated = [f for f in text_string_to_metric_families(page) if f.name == "vllm:generation_tokens"]
    assert [sample.labels["model_name"] for sample in generated[0].samples if sample.value == 3] == [name]


async def test_servers_are_independent_and_each_has_its_port() -> None:
    async with engines(speed=20, count=3) as started:
        assert len(set(started.ports)) == 3
        raw = await Raw.to(started, 2)
        await raw.ask("POST", CHAT, body(10))
        assert await metric(started, gauge("generation_tokens_total")) == 0
        counts = [server.drivers[0].engine.counters.generation_tokens for server in started.servers]
        assert counts == [0, 0, 10]


async def test_a_taken_port_leaves_nothing_open() -> None:
    async with engines() as started:
        below = started.ports[0] - 1
        both = SimulatedEngines(EngineSettings(port=below, count=2))
        with pytest.raises(OSError):
            await both.start()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", below)


async def test_closing_drops_connections_and_stops_the_engines() -> None:
    async with engines() as started:
        raw = await Raw.to(started)
        raw.writer.write(encode("POST", CHAT, body(4000, stream=True)))
        await raw.head()
        await until(started, gauge("num_requests_running"), 1)
        await started.close()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await raw.reader.readexactly(10_000_000)
