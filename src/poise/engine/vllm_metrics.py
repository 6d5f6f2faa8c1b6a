"""Which metrics a vLLM server has, filled from the engines' own state. Names and labels as on a page of vLLM 0.32."""

from collections.abc import Callable, Sequence

from poise.engine.driver import EngineDriver
from poise.engine.histograms import BUCKETS
from poise.engine.metrics_page import MetricsPage, Numbers
from poise.engine_model.counters import Counters
from poise.engine_model.profile import EngineProfile

HELP = {
    "request_prompt_tokens": "Number of prompt tokens of each finished request.",
    "request_generation_tokens": "Number of generated tokens of each finished request.",
    "iteration_tokens_total": "Number of tokens that one engine step computed.",
    "request_max_num_generation_tokens": "Largest number of generated tokens asked for by a request.",
    "request_params_n": "The n parameter of each request.",
    "request_params_max_tokens": "The max_tokens parameter of each request.",
    "time_to_first_token_seconds": "Time from the arrival of a request to its first token in seconds.",
    "inter_token_latency_seconds": "Time between two tokens of one request in seconds.",
    "request_time_per_output_token_seconds": "Mean time for each output token of a request in seconds.",
    "e2e_request_latency_seconds": "Time from the arrival of a request to its last token in seconds.",
    "request_queue_time_seconds": "Time that a request spent waiting in the queue in seconds.",
    "request_inference_time_seconds": "Time that a request spent running in seconds.",
    "request_prefill_time_seconds": "Time that a request spent in prefill in seconds.",
    "request_decode_time_seconds": "Time that a request spent in decode in seconds.",
    "request_num_preemptions": "How often a request was preempted before it finished.",
    "request_prefill_kv_computed_tokens": "Prompt tokens computed in prefill, those found in the cache left out.",
}
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
UNUSED_COUNTERS = (
    ("estimated_flops_per_gpu", "Estimated floating point operations on each GPU, for model FLOPs utilisation."),
    ("estimated_read_bytes_per_gpu", "Estimated bytes read from memory on each GPU, for model FLOPs utilisation."),
    ("estimated_write_bytes_per_gpu", "Estimated bytes written to memory on each GPU, for model FLOPs utilisation."),
    ("external_prefix_cache_queries", "Tokens looked up in a prefix cache that instances share over a connector."),
    ("external_prefix_cache_hits", "Tokens found in a prefix cache that instances share over a connector."),
    ("mm_cache_queries", "Items looked up in the cache of multi-modal inputs."),
    ("mm_cache_hits", "Items found in the cache of multi-modal inputs."),
)
"""Counters of features that are not simulated: always 0, as on a real server without them."""


class VllmMetrics:
    """Adds the metrics of one server's engines, one series each, to a page."""

    def __init__(self, page: MetricsPage, drivers: Sequence[EngineDriver], model: str, profile: EngineProfile) -> None:
        self._page = page
        self._drivers = drivers
        self._model = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._profile = profile
        self._labels = [f'engine="{rank}",model_name="{self._model}"' for rank in range(len(drivers))]
        self._add_load()
        self._add_cache()
        self._add_counters()
        self._add_histograms()

    def _each(self, read: Callable[[EngineDriver], float]) -> Numbers:
        return lambda: [read(driver) for driver in self._drivers]

    def _counts(self, read: Callable[[Counters], float]) -> Numbers:
        return self._each(lambda driver: read(driver.engine.counters))

    def _by(self, label: str, values: Sequence[str]) -> list[str]:
        """Labels for every engine and every value of one more label, which stands where vLLM sorts it."""
        return [
            ",".join(sorted((f'engine="{rank}"', f'model_name="{self._model}"', f'{label}="{value}"')))
            for rank in range(len(self._drivers))
            for value in values
        ]

    def _by_numbers(self, read: Callable[[EngineDriver], Sequence[float]]) -> Numbers:
        return lambda: [number for driver in self._drivers for number in read(driver)]

    def _add_load(self) -> None:
        page, labels = self._page, self._labels
        for name, description in UNUSED_COUNTERS[:3]:
            page.counter(f"vllm:{name}", description, labels, self._each(lambda _: 0))
        running = "Number of requests in the batch that is computed."
        page.gauge("vllm:num_requests_running", running, labels, self._each(lambda driver: driver.engine.running))
        waiting = "Number of requests that wait to be computed."
        page.gauge("vllm:num_requests_waiting", waiting, labels, self._each(lambda driver: driver.engine.waiting))
        reasons = "Number of waiting requests by reason: capacity (the batch or the KV cache is full) or deferred."
        page.gauge(
            "vllm:num_requests_waiting_by_reason",
            reasons,
            self._by("reason", ("capacity", "deferred")),
            self._by_numbers(lambda driver: (driver.engine.waiting, 0)),
        )
        page.gauge(
            "vllm:engine_sleep_state",
            "Engine sleep state; awake = 1 means that it serves, weights_offloaded and discard_all are sleep levels.",
            self._by("sleep_state", ("awake", "weights_offloaded", "discard_all")),
            self._by_numbers(lambda _: (1, 0, 0)),
        )

    def _add_cache(self) -> None:
        page, labels = self._page, self._labels
        usage = "KV-cache usage. 1 means 100 percent usage."
        page.gauge("vllm:kv_cache_usage_perc", usage, labels, self._each(lambda driver: driver.engine.kv_usage_ratio))
        queries = "Prefix cache queries, in tokens."
        page.counter("vllm:prefix_cache_queries", queries, labels, self._counts(lambda c: c.prefix_queries_tokens))
        hits = "Prefix cache hits, in tokens."
        page.counter("vllm:prefix_cache_hits", hits, labels, self._counts(lambda c: c.prefix_hits_tokens))
        for name, description in UNUSED_COUNTERS[3:]:
            page.counter(f"vllm:{name}", description, labels, self._each(lambda _: 0))
        page.family("vllm:cache_config_info", "gauge", "Settings of the KV cache, as labels.")
        profile = self._profile
        for rank in range(len(self._drivers)):
            page.constant(
                f'vllm:cache_config_info{{block_size="{profile.block_size_tokens}",cache_dtype="auto",'
                f'enable_prefix_caching="True",engine="{rank}",gpu_memory_utilization="0.9",is_attention_free="False",'
                f'kv_cache_size_tokens="{profile.kv_capacity_tokens}",num_cpu_blocks="None",'
                f'num_gpu_blocks="{profile.kv_blocks}",num_gpu_blocks_override="None",'
                f'prefix_caching_hash_algo="xxh3",sliding_window="None"}}',
                1,
            )

    def _add_counters(self) -> None:
        page, labels = self._page, self._labels
        preemptions = "How often a running request lost its blocks to another one."
        page.counter("vllm:num_preemptions", preemptions, labels, self._counts(lambda c: c.preemptions))
        prompt = "Number of prompt tokens processed."
        page.counter("vllm:prompt_tokens", prompt, labels, self._counts(lambda c: c.prompt_tokens))
        page.counter(
            "vllm:prompt_tokens_by_source",
            "Number of prompt tokens by where their KV cache came from.",
            self._by("source", PROMPT_SOURCES),
            self._by_numbers(_prompt_sources),
        )
        cached = "Number of prompt tokens found in a cache."
        page.counter("vllm:prompt_tokens_cached", cached, labels, self._counts(lambda c: c.cached_tokens))
        page.counter(
            "vllm:prompt_tokens_cached_by_source",
            "Number of prompt tokens found in a cache, by the tier that had them.",
            self._by("source", CACHE_TIERS),
            self._by_numbers(lambda driver: (driver.engine.counters.cached_tokens, 0, 0, 0, 0)),
        )
        generated = "Number of generated tokens."
        page.counter("vllm:generation_tokens", generated, labels, self._counts(lambda c: c.generation_tokens))
        page.counter(
            "vllm:request_success",
            "Number of requests that the engine finished, by reason.",
            self._by("finished_reason", FINISHED_REASONS),
            # A caller who leaves is not counted as "abort": vLLM does not either.
            self._by_numbers(lambda driver: [_ended(driver, reason) for reason in FINISHED_REASONS]),
        )
        limits = ("max_num_queued_reqs", "max_num_queued_tokens")
        page.counter(
            "vllm:admission_rejections",
            "Number of requests refused because a queue limit was reached, by limit.",
            [f'model_name="{self._model}",reason="{limit}"' for limit in limits],
            lambda: [sum(d.engine.counters.rejections[limit] for d in self._drivers) for limit in limits],
        )
        steps = "Steps that the simulated engine has computed."
        page.gauge("poise_engine:steps_total", steps, labels, self._counts(lambda c: c.steps))
        late = "Steps that ended later than planned because the machine was too busy to simulate them in time."
        page.gauge("poise_engine:late_steps_total", late, labels, self._each(lambda driver: driver.late_steps))

    def _add_histograms(self) -> None:
        for name in BUCKETS:
            by_label = {
                label: driver.histograms.by_name[name]
                for label, driver in zip(self._labels, self._drivers, strict=True)
            }
            self._page.histogram(f"vllm:{name}", HELP[name], by_label)


def _prompt_sources(driver: EngineDriver) -> tuple[float, float, float]:
    counters = driver.engine.counters
    return counters.prompt_tokens - counters.cached_tokens, counters.cached_tokens, 0


def _ended(driver: EngineDriver, reason: str) -> int:
    return 0 if reason == "abort" else driver.engine.counters.ended.get(reason, 0)
