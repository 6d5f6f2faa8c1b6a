"""What `poise engine` is started with."""

from dataclasses import dataclass, field, replace

from poise.core.errors import ConfigError
from poise.engine_model.profile import EngineProfile
from poise.engine_model.profiles import DEFAULT_PROFILE, find_profile

KEEP_ALIVE_S = 5.0
"""vLLM closes a connection that was idle for this long."""
DEFAULT_MODEL = "poise-sim"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """`count` simulated vLLM servers on consecutive ports from `port`, each with `data_parallel_size` engines.

    `speed` runs them so many times faster than the hardware of `profile`. `output_tokens_mean` is the mean length of
    answers to requests without `ignore_eos` (log-normal, cut at the request's `max_tokens`). The `max_num_*` are vLLM's
    flags; None keeps the profile's value, or no limit. With the same `seed` the same requests get the same answers.
    """

    port: int
    host: str = "127.0.0.1"
    count: int = 1
    profile: EngineProfile = field(default_factory=lambda: find_profile(DEFAULT_PROFILE))
    speed: float = 1.0
    model: str = DEFAULT_MODEL
    data_parallel_size: int = 1
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_model_len: int | None = None
    num_gpu_blocks: int | None = None
    priority_scheduling: bool = False
    output_tokens_mean: float = 256.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("speed", self.speed, 0.0), ("output_tokens_mean", self.output_tokens_mean, 0.0)):
            if value <= least:
                raise ConfigError(f"{name} {value} is not above {least}", hint=f"give {name} a positive number")
        for name, number in (("count", self.count), ("data_parallel_size", self.data_parallel_size)):
            if number < 1:
                raise ConfigError(f"{name} {number} is below 1", hint=f"give {name} 1 or more")
        if not 0 <= self.port <= 65_536 - self.count:
            raise ConfigError(
                f"ports {self.port} to {self.port + self.count - 1} are not in 0-65535", hint="choose a lower port"
            )

    def effective_profile(self) -> EngineProfile:
        """The profile with what the settings override. Raises `ConfigError` if the limits contradict each other."""
        limits = self.profile.limits
        max_num_seqs = self.max_num_seqs or limits.max_num_seqs
        profile = self.profile
        kv_blocks = self.num_gpu_blocks or profile.kv_blocks
        return replace(
            profile,
            kv_blocks=kv_blocks,
            max_model_len_tokens=min(
                self.max_model_len or profile.max_model_len_tokens, kv_blocks * profile.block_size_tokens
            ),
            limits=replace(
                limits,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens or max(limits.max_num_batched_tokens, max_num_seqs),
                max_num_queued_reqs=self.max_num_queued_reqs,
                max_num_queued_tokens=self.max_num_queued_tokens,
                priority=self.priority_scheduling,
            ),
        )
