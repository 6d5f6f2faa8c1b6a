"""Traces: the caller's context goes on to the replica, spans reach a collector, and a broken collector harms nobody."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from poise.core.errors import ConfigError
from poise.tracing import opening, otlp, sender
from poise.tracing.opening import open_tracing
from poise.tracing.tracer import Tracing, TracingSettings
from support.apis import CHAT, RESPONSES, USAGE, chat_event
from support.collector import Collector, attributes, collector
from support.gateway import Gateway, gateway
from support.http_bytes import request
from support.scripted_replica import ScriptedReplica
from support.scripts import answers, answers_error, streams
from support.wire import until

TRACE, CALLER = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
PARENT = ("traceparent", f"00-{TRACE.decode()}-{CALLER.decode()}-01")
SECRETS = ("sk-secret", "a secret prompt", "a secret user", "127.0.0.1")


@asynccontextmanager
async def tracing(poise: Gateway, url: str, sample_ratio: float = 1.0) -> AsyncIterator[Tracing]:
    """Have the gateway trace to the collector at `url`."""
    traced = open_tracing(TracingSettings(url, sample_ratio, "gate"), Random(7))
    poise.data_path.trails.tracer = traced
    try:
        yield traced
    finally:
        await asyncio.to_thread(traced.close)


async def spans_of(got: Collector, count: int) -> list[Span]:
    """The spans, once so many have come."""
    await until(lambda: len(got.spans) >= count, lambda: f"{count} spans, there are {got.spans}", within_s=10)
    return got.spans


def sent_context(replica: ScriptedReplica, number: int = 0) -> tuple[bytes, bytes, bytes]:
    """Trace id, span id and flags that a replica was sent."""
    value = replica.requests[number].head.value("traceparent")
    match = re.fullmatch(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", value or b"")
    assert match is not None, value
    return match[1], match[2], match[3]


async def test_a_request_is_a_server_span_under_its_caller_and_a_client_span_for_the_replica() -> None:
    events = (*CHAT.events[:-1], chat_event(None, usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}))
    async with (
        ScriptedReplica(streams(*events, CHAT.events[-1])) as replica,
        gateway(replica) as poise,
        collector() as got,
        tracing(poise, got.url),
    ):
        headers = [PARENT, ("tracestate", "a=1"), ("tracestate", "b=2"), ("authorization", "Bearer sk-secret")]
        body = CHAT.request_body(
            stream=True, messages=[{"role": "user", "content": "a secret prompt"}], user="a secret user"
        )
        await poise.ask(request(body=body, headers=headers))
        server, attempt = await spans_of(got, 2)
        assert (server.name, server.kind) == ("POST /v1/chat/completions", Span.SPAN_KIND_SERVER)
        assert (server.trace_id.hex().encode(), server.parent_span_id.hex().encode()) == (TRACE, CALLER)
        assert (attempt.name, attempt.kind) == ("chat m", Span.SPAN_KIND_CLIENT)
        assert (attempt.trace_id, attempt.parent_span_id) == (server.trace_id, server.span_id)
        assert sent_context(replica) == (TRACE, attempt.span_id.hex().encode(), b"01")
        assert replica.requests[0].head.value("tracestate") == b"a=1,b=2"
        told = attributes(server)
        assert told["gen_ai.request.model"] == "m"
        assert told["gen_ai.operation.name"] == "chat"
        assert told["gen_ai.request.max_tokens"] == 64
        usage = ("gen_ai.usage.input_tokens", "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.output_tokens")
        assert tuple(told[name] for name in usage) == (11, 4, 7)
        assert (told["http.response.status_code"], told["http.route"]) == (200, "/v1/chat/completions")
        assert (told["poise.replica"], told["poise.outcome"], told["poise.attempts"]) == ("r1", "completed", 1)
        assert 0 < told["gen_ai.response.time_to_first_chunk"] < 10
        assert [event.name for event in server.events] == ["first_output"]
        assert server.start_time_unix_nano <= attempt.start_time_unix_nano <= attempt.end_time_unix_nano
        assert attempt.end_time_unix_nano <= server.end_time_unix_nano + 1_000_000
        assert server.start_time_unix_nano > 1_500_000_000 * 10**9, "wall time"
        assert got.resource["service.name"] == "gate"
        assert got.paths == [b"/v1/traces"]
        for secret in SECRETS:
            assert secret.encode() not in b"".join(got.raw)


async def test_a_retry_is_an_event_and_a_second_client_span() -> None:
    async with (
        ScriptedReplica(answers_error(503)) as broken,
        ScriptedReplica(answers()) as healthy,
        gateway(broken, healthy) as poise,
        collector() as got,
        tracing(poise, got.url + "/custom/path"),
    ):
        await poise.ask(request(body=CHAT.request_body(stream=False)))
        server, first, second = await spans_of(got, 3)
        assert [event.name for event in server.events] == ["retry", "first_output"]
        assert attributes(server.events[0]) == {"error.type": "refused"}
        assert (first.status.code, second.status.code) == (Status.STATUS_CODE_ERROR, Status.STATUS_CODE_UNSET)
        assert attributes(first)["error.type"] == "refused"
        assert attributes(second)["http.request.resend_count"] == 1
        assert not server.parent_span_id
        assert [sent_context(one)[1] for one in (broken, healthy)] == [
            span.span_id.hex().encode() for span in (first, second)
        ]
        assert got.paths == [b"/custom/path"]


async def test_an_error_of_the_replica_is_an_error_of_the_span() -> None:
    async with (
        ScriptedReplica(answers_error(500)) as broken,
        gateway(broken) as poise,
        collector() as got,
        tracing(poise, got.url),
    ):
        await poise.ask(request(body=CHAT.request_body(stream=False)))
        server, _ = await spans_of(got, 2)
        assert server.status.code == Status.STATUS_CODE_ERROR
        assert attributes(server)["http.response.status_code"] == 500


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_the_callers_sampling_counts_before_ours(ratio: float) -> None:
    async with (
        ScriptedReplica(answers()) as replica,
        gateway(replica) as poise,
        collector() as got,
        tracing(poise, got.url, ratio),
    ):
        client = await poise.client()
        for flags in ("00", "01"):
            parent = ("traceparent", f"00-{TRACE.decode()}-{CALLER.decode()}-{flags}")
            await client.ask(request(body=CHAT.request_body(stream=False), headers=[parent]))
        await client.ask(request(body=CHAT.request_body(stream=False)))
        sent = [sent_context(replica, number) for number in range(3)]
        assert [flags for _, _, flags in sent] == [b"00", b"01", b"01" if ratio else b"00"]
        assert [trace == TRACE for trace, _, _ in sent] == [True, True, False]
        await spans_of(got, 4 if ratio else 2)
        assert len(got.spans) == (4 if ratio else 2)


@pytest.mark.parametrize(
    "value",
    ["", "x", f"ff-{TRACE.decode()}-{CALLER.decode()}-01", f"00-{'0' * 32}-{CALLER.decode()}-01", "00-1-2-01"],
)
async def test_a_context_that_is_not_valid_begins_a_new_trace(value: str) -> None:
    async with (
        ScriptedReplica(answers()) as replica,
        gateway(replica) as poise,
        collector() as got,
        tracing(poise, got.url),
    ):
        headers = [("traceparent", value), ("tracestate", "a=1")]
        await poise.ask(request(body=CHAT.request_body(stream=False), headers=headers))
        assert sent_context(replica)[0] != TRACE
        assert replica.requests[0].head.value("tracestate") is None


async def test_off_the_callers_headers_pass_unaltered() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        headers = [("TraceParent", "anything"), ("tracestate", "a=1")]
        await poise.ask(request(body=CHAT.request_body(stream=False), headers=headers))
        head = replica.requests[0].head
        assert (head.value("traceparent"), head.value("tracestate")) == (b"anything", b"a=1")


@pytest.mark.parametrize("broken", ["refuses", "hangs", "gone"])
async def test_a_broken_collector_loses_traces_and_no_request(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "CLOSE_S", 0.2)
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(sender, "PAUSE_S", 0.05)
    monkeypatch.setattr(sender, "MOST_WAITING", 5)
    async with (
        ScriptedReplica(answers()) as replica,
        gateway(replica) as poise,
        collector(status=400, hangs=broken == "hangs") as got,
        tracing(poise, "http://127.0.0.1:1" if broken == "gone" else got.url) as traced,
    ):
        client = await poise.client()
        for _ in range(50):
            assert (await client.ask(request(body=CHAT.request_body(stream=False)))).status == 200
        await until(lambda: traced.lost > 0, "traces to be lost", within_s=10)
        assert traced.lost <= 50


def test_without_the_packages_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'poise\[otel\]'"):
        open_tracing(TracingSettings("http://127.0.0.1:1"), Random(0))


async def test_a_request_that_goes_on_from_a_stored_response_is_traced_like_any_other() -> None:
    plain = {**RESPONSES.plain, "id": "resp_1"}
    async with (
        ScriptedReplica(answers(200, plain)) as replica,
        gateway(replica) as poise,
        collector() as got,
        tracing(poise, got.url),
    ):
        for more in ({}, {"previous_response_id": "resp_1"}):
            answer = await poise.ask(request(RESPONSES.path, RESPONSES.request_body(stream=False, **more)))
            assert answer.status == 200
        assert answer.value("x-poise-reason") == b"stored response"
        await spans_of(got, 4)
        sent_context(replica, 1)
