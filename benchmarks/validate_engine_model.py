"""Replays recorded runs of real vLLM 0.19 through the engine model and prints how far off it is.

    .venv/bin/python benchmarks/validate_engine_model.py [--data DIR] [--fit | --write]

TTFT runs from arrival to first token, TPOT is (E2E - TTFT) / (output tokens - 1). `--write` also writes the table to
benchmarks/results/engine_model.md. `--fit` shows how well the formula describes the RTX PRO 6000's step table instead.
"""

import argparse
import csv
import json
import math
import statistics
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from pathlib import Path

from poise.engine_model.engine import Engine
from poise.engine_model.profile import EngineProfile, StepTimes
from poise.engine_model.profiles import PRO_6000_LLAMA_8B, find_profile
from poise.engine_model.sequence import Sequence

HERE = Path(__file__).parent
STEP_TABLE = "vllm_RTXPRO6000_Llama-3.1-8B_step.csv"
RUNS = {
    "rtx-pro-6000-llama-3.1-8b": "vllm_RTXPRO6000_Llama-3.1-8B_requests.jsonl",
    "rtx-4090-llama-3.1-8b": "vllm_RTX4090_Llama-3.1-8B_requests.jsonl",
    "2x-rtx-pro-6000-qwen3-32b": "vllm_RTXPRO6000_Qwen3-32B_requests.jsonl",
}


@dataclass(frozen=True)
class Recorded:
    """One request of a run; times in seconds after the first arrival, on one clock."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    first_token_s: float
    last_token_s: float


@dataclass(frozen=True)
class Latency:
    """What one request saw."""

    ttft_s: float
    tpot_s: float
    e2e_s: float


def read_run(path: Path) -> list[Recorded]:
    """Arrivals are wall time and the rest monotonic time; the smallest gap between arrival and queue joins the two."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    offset = min(row["queued_ts"] - row["arrival_time"] for row in rows)
    start = min(row["arrival_time"] for row in rows)
    return [
        Recorded(
            row["arrival_time"] - start,
            row["input_toks"],
            row["output_toks"],
            row["first_token_ts"] - offset - start,
            row["last_token_ts"] - offset - start,
        )
        for row in sorted(rows, key=lambda row: row["arrival_time"])
    ]


def latency(arrival_s: float, first_s: float, last_s: float, tokens: int) -> Latency:
    return Latency(first_s - arrival_s, (last_s - first_s) / max(tokens - 1, 1), last_s - arrival_s)


def replay(profile: EngineProfile, run: SequenceOf[Recorded]) -> tuple[list[Latency], Engine]:
    """The run in virtual time: prompts share nothing, as in the recording."""
    engine = Engine(profile)
    sequences = [Sequence(request.input_tokens, request.output_tokens) for request in run]
    now_s, next_arrival = 0.0, 0
    while True:
        while next_arrival < len(run) and run[next_arrival].arrival_s <= now_s:
            engine.submit(sequences[next_arrival], run[next_arrival].arrival_s)
            next_arrival += 1
        duration_s = engine.begin_step(now_s)
        if duration_s is None:
            if next_arrival == len(run):
                break
            now_s = run[next_arrival].arrival_s
            continue
        end_s = now_s + duration_s
        while next_arrival < len(run) and run[next_arrival].arrival_s < end_s:
            engine.submit(sequences[next_arrival], run[next_arrival].arrival_s)
            next_arrival += 1
        now_s = end_s
        engine.end_step(now_s)
    return [
        latency(request.arrival_s, s.first_token_s or 0.0, s.ended_s or 0.0, s.output_tokens)
        for request, s in zip(run, sequences, strict=True)
    ], engine


def percentile(values: list[float], ratio: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(ratio * len(ordered)) - 1)]


def compare(real: list[Latency], model: list[Latency]) -> list[tuple[str, float, float]]:
    """(what, recorded, modelled) for mean and P99 of the three latencies."""
    rows = []
    for name, pick in (
        ("TTFT", lambda one: one.ttft_s),
        ("TPOT", lambda one: one.tpot_s),
        ("E2E", lambda one: one.e2e_s),
    ):
        ours, theirs = [pick(one) for one in model], [pick(one) for one in real]
        rows.append((f"{name} mean", statistics.fmean(theirs), statistics.fmean(ours)))
        rows.append((f"{name} P99", percentile(theirs, 0.99), percentile(ours, 0.99)))
    return rows


def report(data: Path) -> str:
    lines = ["| run | what | recorded | modelled | error |", "|---|---|---|---|---|"]
    for name, file in RUNS.items():
        run = read_run(data / file)
        model, engine = replay(find_profile(name), run)
        real = [latency(r.arrival_s, r.first_token_s, r.last_token_s, r.output_tokens) for r in run]
        for what, theirs, ours in compare(real, model):
            unit, scale = ("ms", 1000) if what.startswith("TPOT") else ("s", 1)
            error = f"{ours / theirs - 1:+.1%}"
            lines.append(f"| {name} | {what} | {theirs * scale:.2f} {unit} | {ours * scale:.2f} {unit} | {error} |")
        lines.append(f"| {name} | preemptions | not recorded | {engine.counters.preemptions} | |")
    return "\n".join(lines)


@dataclass(frozen=True)
class MeasuredStep:
    tokens: int
    pairs: float
    context_tokens: int
    requests: int
    duration_s: float


def read_steps(path: Path) -> list[MeasuredStep]:
    steps = []
    for row in csv.DictReader(path.open()):
        decodes, chunk = int(row["n_decode"]), int(row["prefill_chunk"])
        context = decodes * int(row["kv_decode"])
        requests = decodes + (chunk > 0)
        steps.append(
            MeasuredStep(int(row["num_tokens"]), chunk * chunk / 2, context, requests, float(row["step_us"]) / 1e6)
        )
    return steps


def step_error(times: StepTimes, steps: list[MeasuredStep]) -> float:
    """Mean of the relative errors."""
    return statistics.fmean(
        abs(times.duration_s(s.tokens, s.pairs, s.context_tokens, s.requests) / s.duration_s - 1) for s in steps
    )


def fit(steps: list[MeasuredStep], start: StepTimes) -> StepTimes:
    """Coordinate descent over c, k, r and f. W is weight bytes over copy bandwidth, a is an estimate: both stay."""
    best, best_error = start, step_error(start, steps)
    step_ratio = 0.1
    while step_ratio > 1e-4:
        improved = False
        for name in ("compute_s_per_token", "kv_read_s_per_token", "request_s", "fixed_s"):
            for factor in (1 + step_ratio, 1 - step_ratio):
                candidate = replace(best, **{name: getattr(best, name) * factor})
                error = step_error(candidate, steps)
                if error < best_error:
                    best, best_error, improved = candidate, error, True
        if not improved:
            step_ratio /= 2
    return best


RESULTS_HEAD = """# The engine model beside recorded runs of real vLLM 0.19

Made by `.venv/bin/python benchmarks/validate_engine_model.py --write`. How the constants came about, and what the
numbers mean: [docs/engine-model.md](../../docs/engine-model.md).

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE / "data" / "validation")
    parser.add_argument("--fit", action="store_true", help="fit the formula to the RTX PRO 6000's step table")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/results/engine_model.md")
    arguments = parser.parse_args()
    if arguments.fit:
        steps = read_steps(arguments.data / STEP_TABLE)
        for what, times in (("in use", PRO_6000_LLAMA_8B), ("fitted", fit(steps, PRO_6000_LLAMA_8B))):
            print(f"{what}: mean error {step_error(times, steps):.1%} over {len(steps)} steps, {times}")
        return
    table = report(arguments.data)
    print(table)
    if arguments.write:
        (HERE / "results" / "engine_model.md").write_text(RESULTS_HEAD + table + "\n")


if __name__ == "__main__":
    main()
