"""The KV cache as the scheduler sees it: sequences that find, take, extend and give back blocks."""

from poise.engine_model.block_pool import BlockPool
from poise.engine_model.sequence import Sequence


class KvCache:
    """Blocks of `block_size_tokens` tokens. A sequence's full blocks are shareable as far as it has hashes."""

    __slots__ = ("block_size_tokens", "pool")

    def __init__(self, blocks: int, block_size_tokens: int) -> None:
        self.pool = BlockPool(blocks)
        self.block_size_tokens = block_size_tokens

    def held_tokens(self, sequence: Sequence) -> int:
        """Tokens for which `sequence` has blocks."""
        return (sequence.hashed_blocks + sequence.private_blocks) * self.block_size_tokens

    def fits(self, sequence: Sequence) -> bool:
        """Whether all that is to be computed of a waiting sequence fits, not only its first chunk.

        That is vLLM's `scheduler_reserve_full_isl`, on by default: without it long prompts are admitted in vain.
        """
        free = self.pool.free
        needed = self._blocks(sequence.target_tokens)
        if needed <= free:
            return True
        hits = self._hit_blocks(sequence)
        return needed - hits + self.pool.unreferenced(sequence.block_hashes, hits) <= free

    def start(self, sequence: Sequence) -> None:
        """Reference the blocks of a waiting sequence that are cached, and count their tokens as computed."""
        hits = self._hit_blocks(sequence)
        self.pool.grow(sequence.block_hashes, 0, hits, 0)
        sequence.hashed_blocks = hits
        sequence.computed_tokens = hits * self.block_size_tokens

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give `sequence` the blocks for `tokens` in all; full ones become shareable. False if too few are free."""
        held = sequence.hashed_blocks + sequence.private_blocks
        needed = self._blocks(tokens)
        if needed - held > self.pool.free:
            return False
        full = min(tokens // self.block_size_tokens, len(sequence.block_hashes))
        hashed = max(full, sequence.hashed_blocks)
        private = needed - hashed
        self.pool.grow(sequence.block_hashes, sequence.hashed_blocks, hashed, private - sequence.private_blocks)
        sequence.hashed_blocks = hashed
        sequence.private_blocks = private
        return True

    def release(self, sequence: Sequence) -> None:
        """Take all blocks from `sequence`; those with a hash stay cached until their place is needed."""
        self.pool.release(sequence.block_hashes, sequence.hashed_blocks, sequence.private_blocks)
        sequence.hashed_blocks = sequence.private_blocks = 0

    def _hit_blocks(self, sequence: Sequence) -> int:
        # The last token is always computed, even on a full hit: its logits give the next token.
        limit = (sequence.target_tokens - 1) // self.block_size_tokens
        return self.pool.hit_blocks(sequence.block_hashes, limit)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size_tokens)
