"""The profiles by name. Where every number comes from: `docs/engine-model.md`."""

from difflib import get_close_matches

from poise.core.errors import ConfigError
from poise.engine_model.hardware import Card, Link, Model, derive_step_times, kv_blocks
from poise.engine_model.profile import EngineProfile, SchedulerLimits, StepTimes

GIB = 2**30

LLAMA_8B = Model(
    name="Llama-3.1-8B",
    layers=32,
    hidden=4096,
    query_heads=32,
    kv_heads=8,
    head_dim=128,
    feed_forward=14_336,
    vocabulary=128_256,
)
QWEN3_32B = Model(
    name="Qwen3-32B",
    layers=64,
    hidden=5120,
    query_heads=64,
    kv_heads=8,
    head_dim=128,
    feed_forward=25_600,
    vocabulary=151_936,
)

# Fitted. W is the weights at copy speed; c comes from the card's step table; f, r and k from its recorded run, because
# the table's decode steps are slower than those recorded (docs/engine-model.md, "What the step table does not say").
PRO_6000_LLAMA_8B = StepTimes(
    weights_s=10.60e-3,
    compute_s_per_token=43.75e-6,
    attention_s_per_pair=2.0e-9,
    kv_read_s_per_token=102e-9,
    request_s=10e-6,
    fixed_s=0.80e-3,
)
# The same constants as shares of the card's peaks, to carry them to other models and cards.
PRO_6000 = Card(
    name="RTX PRO 6000 Blackwell Server Edition",
    memory_bytes=94.97 * GIB,
    copy_bytes_per_s=1.416e12,
    tensor_flops_per_s=503.8e12,
    matmul_ratio=0.697,
    attention_ratio=0.52,
    kv_read_ratio=0.907,
    layer_gap_s=25e-6,
    request_s=10e-6,
)
# GeForce cards run BF16 with FP32 accumulation at half rate, so their tensor cores, not power or operand bandwidth, are
# what limits: 88-99% of that peak is reached (L20, RTX 5060 Ti). Everything else is taken over from the measured card.
RTX_4090 = Card(
    name="RTX 4090",
    memory_bytes=23.53 * GIB,
    copy_bytes_per_s=0.921e12,
    tensor_flops_per_s=165.2e12,
    matmul_ratio=0.95,
    attention_ratio=0.90,
    kv_read_ratio=0.907,
    layer_gap_s=25e-6,
    request_s=10e-6,
)
PCIE_5_TWO_SOCKETS = Link(bytes_per_s=22.2e9, latency_s=25e-6)
"""NCCL all-reduce as it comes, untuned, between RTX PRO 6000 cards on PCIe 5.0 in a two-socket server."""


PROFILES: dict[str, EngineProfile] = {
    profile.name: profile
    for profile in (
        EngineProfile(
            name="h100-llama-3.1-8b",
            description="Llama-3.1-8B on one H100 80 GB SXM",
            step=StepTimes(
                weights_s=5.7e-3,
                compute_s_per_token=25e-6,
                attention_s_per_pair=1.0e-9,
                kv_read_s_per_token=77e-9,
                request_s=10e-6,
                fixed_s=1.2e-3,
            ),
            kv_blocks=26_313,
        ),
        EngineProfile(
            name="a100-llama-3.1-8b",
            description="Llama-3.1-8B on one A100 80 GB SXM",
            step=StepTimes(
                weights_s=9.4e-3,
                compute_s_per_token=69e-6,
                attention_s_per_pair=2.6e-9,
                kv_read_s_per_token=125e-9,
                request_s=10e-6,
                fixed_s=1.2e-3,
            ),
            kv_blocks=26_313,
        ),
        EngineProfile(
            name="rtx-pro-6000-llama-3.1-8b",
            description="Llama-3.1-8B on one RTX PRO 6000, as in the recorded run",
            step=PRO_6000_LLAMA_8B,
            kv_blocks=kv_blocks(PRO_6000, LLAMA_8B, weight_bytes=16.06e9, overhead_bytes=1.15 * GIB),
            limits=SchedulerLimits(max_num_seqs=128, max_num_batched_tokens=2048),
        ),
        EngineProfile(
            name="rtx-4090-llama-3.1-8b",
            description="Llama-3.1-8B on one RTX 4090, as in the recorded run; predicted from hardware numbers",
            step=derive_step_times(RTX_4090, LLAMA_8B),
            kv_blocks=2588,
            max_model_len_tokens=32_768,
            limits=SchedulerLimits(max_num_seqs=256, max_num_batched_tokens=2048),
        ),
        EngineProfile(
            name="2x-rtx-pro-6000-qwen3-32b",
            description="Qwen3-32B on two RTX PRO 6000 (TP2), as in the recorded run; predicted from hardware numbers",
            step=derive_step_times(PRO_6000, QWEN3_32B, ranks=2, link=PCIE_5_TWO_SOCKETS),
            kv_blocks=kv_blocks(PRO_6000, QWEN3_32B, weight_bytes=65.5e9, overhead_bytes=1.6 * GIB, ranks=2),
            max_model_len_tokens=40_960,
            limits=SchedulerLimits(max_num_seqs=128, max_num_batched_tokens=2048),
        ),
    )
}
DEFAULT_PROFILE = "h100-llama-3.1-8b"


def find_profile(name: str) -> EngineProfile:
    """The profile of that name. Raises `ConfigError`, which lists the known names, for any other."""
    profile = PROFILES.get(name)
    if profile is None:
        near = get_close_matches(name, PROFILES, n=1)
        known = ", ".join(PROFILES)
        raise ConfigError(
            f"engine profile {name!r} is not known; known are {known}",
            hint=f"did you mean {near[0]}" if near else "choose one of them",
        )
    return profile
