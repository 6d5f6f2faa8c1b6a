"""CPU per streamed chunk: 400 open streams, a chunk of 200 bytes every 20 ms on each."""

import time

from harness.load import Figures, LoadRun, UpstreamSettings
from harness.payload import chat_request, write_request
from harness.scenario import REQUESTS, Column, Plan, Running, Sample, Scenario, judged

STREAMS = 400
GAP_US = 20_000
RAMP_S = 1.0
OPEN_S = 15.0
"""How long to wait for all streams; a router that has not opened them by then is measured with those it has."""
SETTLE_S = 0.5


def measure(running: Running, plan: Plan) -> Sample:
    """CPU of the router's processes over events delivered, while no stream begins or ends."""
    request = write_request(REQUESTS / "stream.http", chat_request(stream=True))
    longest_s = RAMP_S + OPEN_S + SETTLE_S + plan.window_s + 5
    flags = {"connections": STREAMS, "ramp-ms": RAMP_S * 1e3, "duration-s": longest_s, "report-ms": 50}
    load = LoadRun(running.port, request, {name: f"{value:.0f}" for name, value in flags.items()})
    with load.program:
        _wait_for_streams(load)
        meter = running.meter(load.program)
        begin_s = time.monotonic()
        time.sleep(plan.window_s)
        usage = meter.usage()
        end_s = time.monotonic()
        time.sleep(0.2)
        reports = load.reports()
    begin, end = _nearest(reports, begin_s), _nearest(reports, end_s)
    events = max(1, end["events"] - begin["events"])
    window_s = end["at_s"] - begin["at_s"]
    values = {
        "cpu_us_per_chunk": usage.router_cpu_s * (window_s / usage.seconds) / events * 1e6,
        "chunks_per_s": events / window_s,
        "open_streams": float(end["open_answers"]),
    }
    failed = end["refused"] + end["broken"]
    return judged(values, usage, failed / max(1, end["sent"]), _note(values))


def _wait_for_streams(load: LoadRun) -> None:
    end = time.monotonic() + RAMP_S + OPEN_S
    while time.monotonic() < end:
        latest = load.latest()
        if latest and latest["open_answers"] >= STREAMS:
            break
        time.sleep(0.1)
    time.sleep(SETTLE_S)


def _nearest(reports: list[Figures], at_s: float) -> Figures:
    return min(reports, key=lambda report: abs(report["at_s"] - at_s))


def _note(values: dict[str, float]) -> str | None:
    wanted = STREAMS / (GAP_US / 1e6)
    if values["chunks_per_s"] < 0.98 * wanted:
        return (
            f"delivered {values['chunks_per_s']:.0f} of {wanted:.0f} chunks/s on {values['open_streams']:.0f} streams"
        )
    return None


SCENARIO = Scenario(
    name="streams",
    title="CPU per streamed chunk, 400 open streams",
    how="chunks of 200 bytes, one every 20 ms on each stream; CPU of the router's processes over chunks delivered",
    upstream=UpstreamSettings(replicas=8, chunks=100_000, gap_us=GAP_US),
    measure=measure,
    columns=(
        Column("cpu_us_per_chunk", "router CPU per chunk, us", "{:.1f}"),
        Column("chunks_per_s", "chunks/s delivered"),
    ),
)
