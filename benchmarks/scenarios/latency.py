"""Latency at half of Poise's own maximum rate: open loop, times from the planned send, 8 and 64 replicas."""

from harness.load import LoadRun, UpstreamSettings
from harness.payload import chat_request, write_request
from harness.scenario import REQUESTS, Column, Plan, Running, Sample, Scenario, judged

CONNECTIONS = 64
WARMUP_S = 1.0
MAX_SEND_DELAY_US = 1000.0
"""The 98th percentile of the load's own delay may not be over it: at most 2% of the steps ran late."""


def measure(running: Running, plan: Plan) -> Sample:
    """One open-loop run at the plan's rate."""
    request = write_request(REQUESTS / "plain.http", chat_request(stream=False))
    duration_s = WARMUP_S + plan.window_s
    flags = {"connections": CONNECTIONS, "rate": round(plan.rate_per_s), "warmup-s": WARMUP_S, "duration-s": duration_s}
    load = LoadRun(running.port, request, flags)
    with load.program:
        meter = running.meter(load.program)
        result = load.finish(duration_s + 10)
        usage = meter.usage()
    values = {f"{name}_ms": result["response_us"].get(name, float("inf")) / 1e3 for name in ("p50", "p99", "p999")}
    values["rate_per_s"] = result["responses"] / result["seconds"]
    delay_us = result["send_delay_us"].get("p98", 0.0)
    sample = judged(values, usage, (result["refused"] + result["broken"]) / max(1, result["sent"]), _note(values, plan))
    if delay_us > MAX_SEND_DELAY_US:
        return Sample(sample.values, f"2% of the requests were sent over {delay_us / 1e3:.1f} ms late", sample.note)
    return sample


def _note(values: dict[str, float], plan: Plan) -> str | None:
    if values["rate_per_s"] < 0.98 * plan.rate_per_s:
        return f"kept up {values['rate_per_s']:.0f} of {plan.rate_per_s:.0f} requests/s"
    return None


def _scenario(replicas: int) -> Scenario:
    return Scenario(
        name=f"latency_{replicas}",
        title=f"Latency at half of Poise's maximum rate, {replicas} replicas",
        how="open loop at a constant rate over 64 kept connections, from the planned send time to the whole answer",
        upstream=UpstreamSettings(replicas=replicas),
        measure=measure,
        columns=(
            Column("p50_ms", "p50, ms", "{:.3f}"),
            Column("p99_ms", "p99, ms", "{:.3f}"),
            Column("p999_ms", "p99.9, ms", "{:.3f}"),
            Column("rate_per_s", "requests/s"),
        ),
        routers=("direct", "poise", "haproxy"),
        needs_rate=True,
    )


SCENARIOS = (_scenario(8), _scenario(64))
