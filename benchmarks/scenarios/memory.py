"""Memory: with 1,000 open streams, some of them read slowly, and over 200,000 distinct prompts."""

import time

from harness.load import LoadRun, UpstreamSettings
from harness.machine import Usage, resident_bytes
from harness.payload import chat_request, write_request
from harness.scenario import REQUESTS, Column, Plan, Running, Sample, Scenario, judged

STREAMS = 1000
SLOW_STREAMS = 50
SLOW_STEER = " gap_us=0 chunks=40000"
"""A slow reader's answer: 8 MB as fast as it is taken."""
GAP_US = 100_000
PROMPTS = 200_000
PROMPT_BYTES = 2000
PROMPTS_S = 30.0
"""The distinct prompts stop here at a router that is not that fast."""
MEGABYTE = 1e6


def measure(running: Running, plan: Plan) -> Sample:
    """Resident memory idle, with streams open, and after a quarter and all of the prompts."""
    if running.program is None:
        raise ValueError("memory is a router's; direct has none")
    session = running.program.session
    values = {"idle_mb": resident_bytes(session) / MEGABYTE}
    values |= _streams(running, session, plan)
    prompts, usage, failed_ratio = _prompts(running, session)
    missing = STREAMS - values["open_streams"]
    note = f"{missing:.0f} of {STREAMS} streams were not open at the end" if missing else None
    return judged(values | prompts, usage, failed_ratio, note)


def _streams(running: Running, session: int, plan: Plan) -> dict[str, float]:
    request = write_request(REQUESTS / "stream.http", chat_request(stream=True))
    slow = chat_request(stream=True, steer=SLOW_STEER).replace(b"@SEQUENCE", b"999999999")
    flags: dict[str, float | int | str] = {
        "connections": STREAMS,
        "slow": SLOW_STREAMS,
        "slow-request": str(write_request(REQUESTS / "slow.http", slow)),
        "ramp-ms": 2000,
        "warmup-s": 3,
        "duration-s": 4 + plan.window_s,
        "report-ms": 100,
    }
    load = LoadRun(running.port, request, flags)
    peak = 0
    with load.program:
        while load.program.is_running():
            peak = max(peak, resident_bytes(session))
            time.sleep(0.1)
        result = load.finish(5)
    return {
        "streams_mb": peak / MEGABYTE,
        "open_streams": float(result["open_answers"]),
        "gap_p99_ms": result["event_gap_us"].get("p99", float("inf")) / 1e3,
    }


def _prompts(running: Running, session: int) -> tuple[dict[str, float], Usage, float]:
    request = write_request(REQUESTS / "prompts.http", chat_request(stream=False, body_bytes=PROMPT_BYTES))
    flags = {"connections": 64, "requests": PROMPTS, "distinct": PROMPTS, "duration-s": PROMPTS_S, "report-ms": 20}
    load = LoadRun(running.port, request, flags)
    resident: list[tuple[int, int]] = []
    with load.program:
        meter = running.meter(load.program)
        while load.program.is_running():
            latest = load.latest()
            resident.append((int(latest["responses"]) if latest else 0, resident_bytes(session)))
            time.sleep(0.1)
        usage = meter.usage()
        result = load.finish(5)
    done = int(result["responses"])
    quarter = next((size for count, size in resident if count >= done / 4), resident[0][1])
    last = resident_bytes(session)
    values = {"prompts": float(done), "prompts_mb": last / MEGABYTE, "growth_mb": (last - quarter) / MEGABYTE}
    return values, usage, (result["refused"] + result["broken"]) / max(1, result["sent"])


SCENARIO = Scenario(
    name="memory",
    title="Memory with 1,000 open streams, and over 200,000 distinct prompts",
    how="1,000 streams at 10 chunks/s, 50 of them 8 MB answers read at 10 kB/s; then distinct prompts of 2 kB, growth "
    "from the first quarter to the end",
    upstream=UpstreamSettings(replicas=8, chunks=100_000, gap_us=GAP_US),
    measure=measure,
    columns=(
        Column("streams_mb", "RSS with streams, MB"),
        Column("idle_mb", "idle, MB"),
        Column("open_streams", "streams open"),
        Column("gap_p99_ms", "p99 between two chunks of a brisk reader, ms"),
        Column("growth_mb", "growth over the prompts, MB", "{:.1f}"),
        Column("prompts", "prompts"),
    ),
    rounds=1,
)
