"""What each engine calls the figures that Poise reads: the only place where engines' metric names are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One engine's metric names, each without the prefix, the current name first.

    `gauges` and `counters` map a field of `LoadReading` to its names; a counter's name is written without `_total`,
    which depends on the client library. `infos` are metrics whose labels carry the figures. `rank_label` tells the
    data-parallel ranks of one server apart. A series that has a label of `only` with another value is a part of a total
    that is reported as well, or the same figure seen by another worker, and is skipped. `late_gauges`: running and
    waiting may be missing until the first request.
    """

    engine: str
    prefixes: tuple[str, ...]
    gauges: Mapping[str, tuple[str, ...]]
    counters: Mapping[str, tuple[str, ...]]
    infos: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rank_label: bytes | None = None
    only: Mapping[bytes, bytes] = field(default_factory=dict)
    late_gauges: bool = False

    def names(self) -> dict[str, list[tuple[str, int]]]:
        """Full metric name -> the fields that it gives, each with its precedence: the lowest on a page is used."""
        found: dict[str, list[tuple[str, int]]] = {}
        for prefix in self.prefixes:
            for group, endings in ((self.gauges, ("",)), (self.infos, ("",)), (self.counters, ("_total", ""))):
                for field_name, names in group.items():
                    spellings = [prefix + name + ending for name in names for ending in endings]
                    for precedence, spelling in enumerate(spellings):
                        found.setdefault(spelling, []).append((field_name, precedence))
        return found


# Sources: each engine's own documentation and code, and pages recorded from running ones (tests/data).
ENGINES = (
    EngineMetrics(
        engine="vLLM",
        prefixes=("vllm:",),
        rank_label=b"engine",
        late_gauges=True,
        gauges={
            "running": ("num_requests_running",),
            "waiting": ("num_requests_waiting",),
            "kv_usage_ratio": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        },
        counters={
            "prompt_tokens": ("prompt_tokens",),
            "generation_tokens": ("generation_tokens",),
            "prefix_queries_tokens": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
            "prefix_hits_tokens": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
            "preemptions": ("num_preemptions",),
        },
        infos={"sleep": ("engine_sleep_state",), "cache": ("cache_config_info",)},
    ),
    EngineMetrics(
        engine="SGLang",
        prefixes=("sglang:", "sglang_"),
        rank_label=b"dp_rank",
        only={b"tp_rank": b"0", b"pp_rank": b"0", b"priority": b""},
        gauges={
            "running": ("num_running_reqs",),
            "waiting": ("num_queue_reqs",),
            "kv_usage_ratio": ("token_usage",),
            "kv_capacity_tokens": ("max_total_num_tokens",),
        },
        counters={
            "prompt_tokens": ("prompt_tokens",),
            "generation_tokens": ("generation_tokens",),
            "prefix_queries_tokens": ("prompt_tokens",),
            "prefix_hits_tokens": ("cached_tokens",),
            "preemptions": ("num_retracted_requests",),
        },
        infos={"cache": ("cache_config_info",)},
    ),
    EngineMetrics(
        engine="TensorRT-LLM",
        prefixes=("trtllm_",),
        gauges={
            "running": ("num_requests_running",),
            "waiting": ("num_requests_waiting",),
            "kv_usage_ratio": ("kv_cache_utilization",),
            "kv_blocks": ("kv_cache_max_blocks",),
            "block_size_tokens": ("kv_cache_tokens_per_block",),
        },
        counters={},
    ),
    EngineMetrics(
        engine="llama.cpp",
        prefixes=("llamacpp:",),
        gauges={
            "running": ("requests_processing",),
            "waiting": ("requests_deferred",),
            "kv_usage_ratio": ("kv_cache_usage_ratio",),
        },
        counters={"prompt_tokens": ("prompt_tokens",), "generation_tokens": ("tokens_predicted",)},
    ),
    EngineMetrics(
        engine="TGI",
        prefixes=("tgi_",),
        gauges={"running": ("batch_current_size",), "waiting": ("queue_size",)},
        # Sums of histograms: they grow when a request ends.
        counters={
            "prompt_tokens": ("request_input_length_sum",),
            "generation_tokens": ("request_generated_tokens_sum",),
        },
    ),
)
