"""What one engine has measured about its requests, in vLLM's buckets."""

from bisect import bisect_left
from collections.abc import Sequence as SequenceOf

from poise.engine_model.batch import StepOutput
from poise.engine_model.sequence import Sequence
from poise.report.histogram import Histogram

TOKEN_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
                 50000.0, 100000.0)  # fmt: skip
STEP_BUCKETS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
                       40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
TOKEN_TIME_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
                      40.0, 80.0)  # fmt: skip
REQUEST_TIME_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                        480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
PREEMPTION_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


def observe_many(histogram: Histogram, value: float, count: int) -> None:
    """Count `value` so many times at once."""
    histogram.counts[bisect_left(histogram.buckets, value)] += count
    histogram.total += value * count


class EngineHistograms:
    """The histograms of one engine, by vLLM's names without prefix. Times are seconds as callers see them."""

    def __init__(self) -> None:
        self.by_name: dict[str, Histogram] = {name: Histogram(buckets) for name, buckets in BUCKETS.items()}
        self._first_token = self.by_name["time_to_first_token_seconds"]
        self._token_gap = self.by_name["inter_token_latency_seconds"]
        self._step_tokens = self.by_name["iteration_tokens_total"]

    def step(self, output: StepOutput, tokens: int, duration_s: float) -> None:
        """Count a finished step of `tokens` that took `duration_s`."""
        self._step_tokens.observe(tokens)
        if output.decoded:
            observe_many(self._token_gap, duration_s, len(output.decoded))
        for sequence in output.started:
            if sequence.generated_tokens == 1:
                self._first_token.observe(_span(sequence.arrived_s, sequence.first_token_s))
        for sequence in output.finished:
            self._finished(sequence)

    def _finished(self, sequence: Sequence) -> None:
        decode_s = _span(sequence.first_token_s, sequence.ended_s)
        values: dict[str, float] = {
            "e2e_request_latency_seconds": _span(sequence.arrived_s, sequence.ended_s),
            "request_queue_time_seconds": _span(sequence.arrived_s, sequence.admitted_s),
            "request_inference_time_seconds": _span(sequence.admitted_s, sequence.ended_s),
            "request_prefill_time_seconds": _span(sequence.admitted_s, sequence.first_token_s),
            "request_decode_time_seconds": decode_s,
            "request_time_per_output_token_seconds": decode_s / max(sequence.output_tokens - 1, 1),
            "request_prompt_tokens": sequence.prompt_tokens,
            "request_generation_tokens": sequence.output_tokens,
            "request_max_num_generation_tokens": sequence.output_tokens,
            "request_params_n": 1,
            "request_params_max_tokens": sequence.output_tokens,
            "request_num_preemptions": sequence.preemptions,
            "request_prefill_kv_computed_tokens": sequence.prompt_tokens - sequence.cached_tokens,
        }
        for name, value in values.items():
            self.by_name[name].observe(value)


def _span(start_s: float | None, end_s: float | None) -> float:
    # Steps are timed by the plan, arrivals by the clock: on a late machine a step may seem to start before an arrival.
    return max(0.0, (end_s or 0.0) - (start_s or 0.0))


BUCKETS: dict[str, SequenceOf[float]] = {
    "request_prompt_tokens": TOKEN_BUCKETS,
    "request_generation_tokens": TOKEN_BUCKETS,
    "iteration_tokens_total": STEP_BUCKETS,
    "request_max_num_generation_tokens": TOKEN_BUCKETS,
    "request_params_n": N_BUCKETS,
    "request_params_max_tokens": TOKEN_BUCKETS,
    "time_to_first_token_seconds": FIRST_TOKEN_BUCKETS,
    "inter_token_latency_seconds": TOKEN_TIME_BUCKETS,
    "request_time_per_output_token_seconds": TOKEN_TIME_BUCKETS,
    "e2e_request_latency_seconds": REQUEST_TIME_BUCKETS,
    "request_queue_time_seconds": REQUEST_TIME_BUCKETS,
    "request_inference_time_seconds": REQUEST_TIME_BUCKETS,
    "request_prefill_time_seconds": REQUEST_TIME_BUCKETS,
    "request_decode_time_seconds": REQUEST_TIME_BUCKETS,
    "request_num_preemptions": PREEMPTION_BUCKETS,
    "request_prefill_kv_computed_tokens": TOKEN_BUCKETS,
}
