"""What an engine has counted since it started, in plain integers."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """The counters that vLLM exposes, under neutral names. Tokens unless the name says otherwise."""

    prompt_tokens: int = 0
    """Of requests whose prefill has ended, cached ones included."""
    cached_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    """Requests by the reason they ended: `length`, `stop`, or `abort` (by the caller)."""
    rejections: dict[str, int] = field(default_factory=lambda: {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0})
