"""What one scrape of one replica said, in neutral names; engine names live in `poise.wire.metrics` only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadReading:
    """One replica's own figures at one moment. None is "not said", never 0.

    Gauges: `running`, `waiting` (requests), `kv_usage_ratio` (blocks referenced by running requests over all blocks,
    0..1), `gpu_utilisation_ratio` (mean over the replica's GPUs, 0..1), `asleep`.
    Sizes: `kv_capacity_tokens`, `block_size_tokens`.
    Counters since the engine started: tokens and preemptions; a fall means that the engine restarted.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None
    gpu_utilisation_ratio: float | None = None
    asleep: bool | None = None
    kv_capacity_tokens: int | None = None
    block_size_tokens: int | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_queries_tokens: float | None = None
    prefix_hits_tokens: float | None = None
    preemptions: float | None = None
