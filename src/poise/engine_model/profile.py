"""What a simulated engine is: its step-time constants, its KV blocks and its scheduler's limits."""

import math
from dataclasses import dataclass

from poise.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The constants of the step-time formula in `duration_s`; `docs/engine-model.md` says where each comes from."""

    weights_s: float
    """W: reading all weights of one rank once."""
    compute_s_per_token: float
    """c: matrix products and elementwise work of one token on one rank."""
    attention_s_per_pair: float
    """a: prefill attention of one token to one earlier token."""
    kv_read_s_per_token: float
    """k: reading one token of context in decode attention."""
    request_s: float
    """r: sampling and bookkeeping of one request."""
    fixed_s: float
    """f: kernel launches, gaps and all-reduce latency of one step."""
    transfer_s_per_token: float = 0.0
    """x: all-reduce bytes of one token between tensor-parallel ranks over the link; 0 for one rank."""

    def duration_s(self, tokens: int, attention_pairs: float, context_tokens: int, requests: int) -> float:
        """Seconds that one step takes.

        `tokens` computed (prefill chunks and one a decode), `attention_pairs` sum over chunks of
        chunk x (past + chunk / 2), `context_tokens` read by decodes, `requests` in the batch.

        Reading weights and computing overlap in part, so the step pays the root of the sum of their squares: that fits
        the measured step tables of three cards better than the larger of the two (2.6% against 5.0% mean error on the
        RTX PRO 6000).
        """
        return (
            math.hypot(self.weights_s, self.compute_s_per_token * tokens)
            + self.transfer_s_per_token * tokens
            + self.attention_s_per_pair * attention_pairs
            + self.kv_read_s_per_token * context_tokens
            + self.request_s * requests
            + self.fixed_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """vLLM's flags of the same names. None means no limit."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_num_queued_reqs: int | None = None
    """Running and waiting requests together, above which a new one is refused."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens whose prefill is not finished, above which a new request is refused."""
    priority: bool = False
    """Order the queue by priority (lower is sooner), then by arrival, instead of by arrival alone."""
    async_scheduling: bool = True
    """Plan a step while the one before it still runs: a request then waits one step longer for its first token."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs {self.max_num_seqs} is not in 1 to max_num_batched_tokens {self.max_num_batched_tokens}",
                hint="a step must have room for one token of every running request",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine: a model on a card (or a tensor-parallel group of cards) with vLLM's settings."""

    name: str
    description: str
    step: StepTimes
    kv_blocks: int
    block_size_tokens: int = 16
    max_model_len_tokens: int = 131_072
    limits: SchedulerLimits = SchedulerLimits()
    request_overhead_s: float = 0.015
    """Tokenizing and parsing before a request is queued; does not occupy the engine (BLIS measured 15.6 ms)."""
    token_overhead_s: float = 0.00005
    """Detokenizing and sending one token; does not occupy the engine (BLIS measured 46 us)."""

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_size_tokens
