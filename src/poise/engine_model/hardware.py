"""Derives a profile's constants from a card's and a model's published numbers. Formulas: `docs/engine-model.md`."""

from dataclasses import dataclass

from poise.engine_model.profile import StepTimes

BYTES_PER_VALUE = 2
"""BF16 weights, activations and KV cache."""
NORM_PASSES = 8
"""Hidden-size vectors moved per layer by two fused add-and-normalise kernels (each reads two and writes two)."""
ALL_REDUCES_PER_LAYER = 2
"""After attention and after the feed-forward block."""
MEMORY_RATIO = 0.90
BLOCK_SIZE_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU. Peaks are dense BF16 with FP32 accumulation; fractions are of that peak or of the copy bandwidth."""

    name: str
    memory_bytes: float
    copy_bytes_per_s: float
    """Device-to-device copy as NVIDIA's `p2pBandwidthLatencyTest` prints it: what streaming really reaches."""
    tensor_flops_per_s: float
    matmul_ratio: float
    attention_ratio: float
    kv_read_ratio: float
    layer_gap_s: float
    """Launch gaps and tails of one layer's kernels."""
    request_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A dense decoder-only transformer with grouped-query attention and a gated feed-forward block."""

    name: str
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int

    @property
    def layer_weights(self) -> float:
        """Parameters of all layers' linear maps."""
        attention = self.hidden * self.head_dim * (2 * self.query_heads + 2 * self.kv_heads)
        return float(self.layers * (attention + 3 * self.hidden * self.feed_forward))

    @property
    def read_bytes(self) -> float:
        """Weight bytes that one step reads: the layers and the output head, not the embedding table."""
        return BYTES_PER_VALUE * (self.layer_weights + self.hidden * self.vocabulary)

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache bytes of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE

    def elementwise_bytes(self, ranks: int) -> float:
        """Bytes that normalisation, rotary embedding, KV writes and the gate move for one token on one rank."""
        sharded = 2 * self.head_dim * (self.query_heads + 2 * self.kv_heads) + 3 * self.feed_forward
        return self.layers * BYTES_PER_VALUE * (NORM_PASSES * self.hidden + sharded / ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What tensor-parallel ranks exchange their sums over, as NCCL sees it."""

    bytes_per_s: float
    latency_s: float


def derive_step_times(card: Card, model: Model, *, ranks: int = 1, link: Link | None = None) -> StepTimes:
    """Step-time constants of `model` split over `ranks` cards joined by `link` (needed for more than one rank)."""
    matmul_s = 2 * model.layer_weights / ranks / (card.tensor_flops_per_s * card.matmul_ratio)
    elementwise_s = model.elementwise_bytes(ranks) / card.copy_bytes_per_s
    pair_flops = 4 * model.query_heads * model.head_dim * model.layers / ranks
    fixed_s = model.layers * card.layer_gap_s
    transfer_s = 0.0
    if link is not None and ranks > 1:
        reduces = ALL_REDUCES_PER_LAYER * model.layers
        moved_ratio = 2 * (ranks - 1) / ranks
        fixed_s += reduces * link.latency_s
        transfer_s = reduces * moved_ratio * model.hidden * BYTES_PER_VALUE / link.bytes_per_s
    return StepTimes(
        weights_s=model.read_bytes / ranks / card.copy_bytes_per_s,
        compute_s_per_token=matmul_s + elementwise_s,
        attention_s_per_pair=pair_flops / (card.tensor_flops_per_s * card.attention_ratio),
        kv_read_s_per_token=model.kv_bytes_per_token / ranks / (card.copy_bytes_per_s * card.kv_read_ratio),
        request_s=card.request_s,
        fixed_s=fixed_s,
        transfer_s_per_token=transfer_s,
    )


def kv_blocks(card: Card, model: Model, *, weight_bytes: float, overhead_bytes: float, ranks: int = 1) -> int:
    """Blocks of 16 tokens that fit beside the weights and `overhead_bytes` (activations, graphs) of each rank.

    90% of the card's memory is used, vLLM's default when the runs were recorded.
    """
    free_bytes = card.memory_bytes * MEMORY_RATIO - weight_bytes / ranks - overhead_bytes
    return int(free_bytes // (model.kv_bytes_per_token / ranks * BLOCK_SIZE_TOKENS))
