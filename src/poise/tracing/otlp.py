"""A request as OpenTelemetry spans, sent by OTLP over HTTP. The only module that needs the extra `otel`.

Spans are made here, in the sender's thread, of what is known once a request has ended: the data path only notes ids.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from poise import __version__
from poise.core.request import Outcome
from poise.proxy.request_log import RequestLine
from poise.proxy.routes import ROUTES
from poise.proxy.trail import Step, Trail
from poise.tracing.tracer import RequestTrace

TIMEOUT_S = 10.0
_SCOPE = InstrumentationScope("poise", __version__)
_OPERATIONS = {"messages": "chat", "responses": "chat", "completions": "text_completion"}
"""Routes whose operation has another name in the conventions for generative AI."""


class OtlpDelivery:
    """Sends batches to the collector at `endpoint`, to its `/v1/traces` unless the URL has a path.

    Headers, certificates and compression are taken from OpenTelemetry's own environment variables.
    """

    def __init__(self, endpoint: str, service_name: str) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the sender says it, once
        url = endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S)
        self._resource = Resource.create({"service.name": service_name, "service.version": __version__})

    def deliver(self, batch: Sequence[Trail]) -> bool:
        """See `Delivery.deliver`."""
        spans = [span for trail in batch for span in spans_of(trail, self._resource)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """See `Delivery.close`."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def spans_of(trail: Trail, resource: Resource) -> Iterator[ReadableSpan]:
    """The request's own span, and one for each time it was sent to a replica. Nothing that its caller wrote but the
    model's name, and no key."""
    trace, line = trail.context, trail.line
    assert isinstance(trace, RequestTrace)
    assert line is not None
    operation = _OPERATIONS.get(line.route, line.route)
    own = _context(trace, trace.span_id)
    parent = None if trace.parent_id is None else _context(trace, trace.parent_id, is_remote=True)
    route = trail.path.decode() if trail.path in ROUTES else line.route
    end_s = trail.started_s + line.duration_s

    def span(name: str, context: SpanContext, begun_s: float, ended_s: float | None, **more: Any) -> ReadableSpan:
        start, end = _wall_ns(trail, begun_s), _wall_ns(trail, end_s if ended_s is None else ended_s)
        return ReadableSpan(
            name, context, resource=resource, instrumentation_scope=_SCOPE, start_time=start, end_time=end, **more
        )

    sent = [step for step in trail.steps if step.replica is not None and step.span_id]
    yield span(
        f"{trail.method.decode()} {route}", own, trail.started_s, end_s, parent=parent, kind=SpanKind.SERVER,
        attributes=_known(_request_attributes(trail, line, operation, route)), events=list(_events(trail, sent)),
        status=_status(line.status >= 500 or line.outcome is Outcome.FAILED),
    )  # fmt: skip
    name = operation if line.model is None else f"{operation} {line.model}"
    for number, step in enumerate(sent):
        yield span(
            name, _context(trace, step.span_id), step.at_s, step.ended_s, parent=own, kind=SpanKind.CLIENT,
            attributes=_known(_attempt_attributes(step, line, operation, number)),
            status=_status(step.outcome is Outcome.FAILED),
        )  # fmt: skip


def _request_attributes(trail: Trail, line: RequestLine, operation: str, route: str) -> dict[str, Any]:
    return {
        "http.request.method": trail.method.decode(),
        "http.route": route,
        "http.response.status_code": line.status,
        "error.type": line.error,
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": line.model,
        "gen_ai.request.stream": line.stream,
        "gen_ai.request.max_tokens": trail.facts.output_tokens,
        "gen_ai.response.time_to_first_chunk": line.first_output_s,
        "gen_ai.usage.input_tokens": line.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": line.cached_tokens,
        "gen_ai.usage.output_tokens": line.output_tokens,
        "poise.request_id": line.request_id,
        "poise.replica": line.replica,
        "poise.reason": line.reason,
        "poise.outcome": str(line.outcome),
        "poise.attempts": line.attempts,
        "poise.queue_s": line.queue_s,
        "poise.key": line.key,
    }


def _attempt_attributes(step: Step, line: RequestLine, operation: str, number: int) -> dict[str, Any]:
    replica = step.replica
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": line.model,
        "poise.replica": replica and replica.name,
        "poise.reason": step.decision.reason,
        "poise.outcome": step.outcome and str(step.outcome),
        "http.request.resend_count": number or None,
        "error.type": step.error and str(step.error),
    }


def _events(trail: Trail, sent: Sequence[Step]) -> Iterator[Event]:
    for before, step in pairwise(sent):
        error = _known({"error.type": before.error and str(before.error)})
        yield Event("retry", error, _wall_ns(trail, step.at_s))
    for step in sent:
        if step.first_output_s is not None:
            yield Event("first_output", {}, _wall_ns(trail, step.first_output_s))


def _context(trace: RequestTrace, span_id: bytes, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(trace.trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _status(failed: bool) -> Status:
    return Status(StatusCode.ERROR if failed else StatusCode.UNSET)


def _wall_ns(trail: Trail, monotonic_s: float) -> int:
    return int((trail.at + monotonic_s - trail.started_s) * 1e9)
