"""Paged KV blocks with prefix caching: who references which block, and which cached block goes first.

Blocks with a hash are known by that hash, so two sequences that computed the same block share it. (vLLM keeps both
copies; that happens only when both compute it in the same step, and makes its usage slightly higher than ours.)
"""

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf


class BlockPool:
    """`total` blocks, each free, private to one sequence, or hashed and then referenced by any number of sequences.

    A hashed block that nobody references stays cached until its place is needed; the one released longest ago goes
    first.
    Invariant: referenced + cached + private <= total, and every reference count is at least 1.
    """

    __slots__ = ("_cached", "_private", "_references", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._references: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks that some sequence references."""
        return len(self._references) + self._private

    @property
    def free(self) -> int:
        """Blocks that can be taken, cached ones included, as they can be evicted."""
        return self.total - len(self._references) - self._private

    @property
    def cached(self) -> int:
        """Blocks kept for reuse that nobody references."""
        return len(self._cached)

    @property
    def usage_ratio(self) -> float:
        """What vLLM calls `kv_cache_usage_perc`: referenced blocks over all, 0 to 1."""
        return self.used / self.total

    def hit_blocks(self, hashes: SequenceOf[int], limit: int) -> int:
        """How many of the first `limit` hashes are here without a gap. Changes nothing."""
        references, cached = self._references, self._cached
        count = 0
        for block_hash in hashes[:limit]:
            if block_hash not in references and block_hash not in cached:
                break
            count += 1
        return count

    def unreferenced(self, hashes: SequenceOf[int], count: int) -> int:
        """How many of the first `count` hashes would leave the free blocks if they were referenced now."""
        references = self._references
        return sum(block_hash not in references for block_hash in hashes[:count])

    def grow(self, hashes: SequenceOf[int], start: int, end: int, private: int) -> None:
        """Reference the blocks of `hashes[start:end]`, cached or new, and take `private` more (negative: give back).

        The caller made sure that what this takes in all is `free`.
        """
        references, cached = self._references, self._cached
        for index in range(start, end):
            block_hash = hashes[index]
            known = references.get(block_hash)
            if known is not None:
                references[block_hash] = known + 1
                continue
            references[block_hash] = 1
            if block_hash in cached:
                del cached[block_hash]
        self._private += private
        for _ in range(len(references) + len(cached) + self._private - self.total):
            cached.popitem(last=False)

    def release(self, hashes: SequenceOf[int], hashed: int, private: int) -> None:
        """Give back one reference to each of the first `hashed` hashes, and `private` blocks.

        The end of the chain is released first, and so evicted first: a block is useless without those before it.
        """
        self._private -= private
        references, cached = self._references, self._cached
        for index in range(hashed - 1, -1, -1):
            block_hash = hashes[index]
            left = references[block_hash] - 1
            if left:
                references[block_hash] = left
            else:
                del references[block_hash]
                cached[block_hash] = None

    def forget(self) -> None:
        """Drop all cached blocks, as `/reset_prefix_cache` does."""
        self._cached.clear()
