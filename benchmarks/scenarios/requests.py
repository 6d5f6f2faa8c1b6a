"""Requests per second, not streamed: wrk over 64 kept connections, 8 replicas that answer at once."""

from harness.load import UpstreamSettings, wrk
from harness.payload import chat_request, write_request
from harness.scenario import REQUESTS, Column, Plan, Running, Sample, Scenario, judged

CONNECTIONS = 64
WARMUP_S = 1.0


def measure(running: Running, plan: Plan) -> Sample:
    """One closed-loop run at the router's own pace."""
    request = write_request(REQUESTS / "plain.http", chat_request(stream=False))
    wrk(running.port, request, CONNECTIONS, WARMUP_S)
    meter = running.meter()
    figures = wrk(running.port, request, CONNECTIONS, plan.window_s)
    usage = meter.usage()
    count = max(1, int(figures["requests"]))
    values = {
        "requests_per_s": count / figures["seconds"],
        "cpu_us_per_request": usage.router_cpu_s / count * 1e6,
        "p50_ms": figures["p50_us"] / 1e3,
        "p99_ms": figures["p99_us"] / 1e3,
    }
    return judged(values, usage, (figures["refused"] + figures["broken"]) / count)


SCENARIO = Scenario(
    name="requests",
    title="Requests per second, not streamed",
    how="wrk, 64 kept connections, chat bodies of 700 bytes in 512 sessions, 8 replicas that answer at once",
    upstream=UpstreamSettings(replicas=8),
    measure=measure,
    columns=(
        Column("requests_per_s", "requests/s"),
        Column("cpu_us_per_request", "router CPU per request, us", "{:.1f}"),
        Column("p50_ms", "p50, ms", "{:.2f}"),
        Column("p99_ms", "p99, ms", "{:.2f}"),
    ),
    higher_is_better=True,
)
