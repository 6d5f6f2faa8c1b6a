"""Sequences find, take and give back blocks; what is full and has a hash is found by the next one."""

from poise.engine_model.kv_cache import KvCache
from poise.engine_model.sequence import Sequence

CHAIN = [101, 102, 103, 104]


def test_blocks_are_taken_as_tokens_come() -> None:
    cache, sequence = KvCache(10, 4), Sequence(16, 8, CHAIN)
    held = []
    for tokens in (1, 4, 5, 16, 17, 24):
        assert cache.grow(sequence, tokens)
        held.append((sequence.hashed_blocks, sequence.private_blocks, cache.held_tokens(sequence)))
    assert held == [(0, 1, 4), (1, 0, 4), (1, 1, 8), (4, 0, 16), (4, 1, 20), (4, 2, 24)]
    cache.release(sequence)
    assert (cache.pool.used, cache.pool.cached) == (0, 4)


def test_growing_beyond_what_is_free_changes_nothing() -> None:
    cache, first, second = KvCache(3, 4), Sequence(8, 1), Sequence(8, 1)
    assert cache.grow(first, 8)
    assert not cache.grow(second, 8)
    assert (cache.pool.used, second.private_blocks) == (2, 0)
    assert cache.grow(second, 4)


def test_a_full_hit_leaves_the_block_of_the_last_token_to_be_computed() -> None:
    cache, first = KvCache(10, 4), Sequence(16, 1, CHAIN)
    cache.grow(first, 16)
    cache.release(first)
    for prompt_tokens, computed in ((16, 12), (17, 16), (15, 12), (4, 0), (5, 4)):
        again = Sequence(prompt_tokens, 1, CHAIN)
        cache.start(again)
        assert again.computed_tokens == computed
        cache.release(again)


def test_a_sequence_fits_if_what_it_shares_is_in_use_anyway() -> None:
    cache, holder = KvCache(6, 4), Sequence(16, 1, CHAIN)
    cache.grow(holder, 16)
    assert cache.fits(Sequence(24, 1, [*CHAIN, 105, 106]))
    assert not cache.fits(Sequence(25, 1, [*CHAIN, 105, 106]))
    assert not cache.fits(Sequence(12, 1, [1, 2, 3]))
    cache.release(holder)
    assert cache.fits(Sequence(24, 1, [*CHAIN, 105, 106]))
    assert not cache.fits(Sequence(25, 1, [*CHAIN, 105, 106]))
