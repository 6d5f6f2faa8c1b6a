"""Blocks are conserved, references never fall below one, and the end of an old chain goes first."""

from hypothesis import given
from hypothesis import strategies as st

from poise.engine_model.block_pool import BlockPool


def test_a_released_chain_is_found_again_from_its_start() -> None:
    pool = BlockPool(10)
    pool.grow([1, 2, 3], 0, 3, 1)
    assert (pool.used, pool.free, pool.usage_ratio) == (4, 6, 0.4)
    pool.release([1, 2, 3], 3, 1)
    assert (pool.used, pool.free, pool.cached) == (0, 10, 3)
    assert pool.hit_blocks([1, 2, 3, 4], 9) == 3
    assert pool.hit_blocks([1, 2, 3, 4], 2) == 2
    assert pool.hit_blocks([9, 2, 3], 3) == 0


def test_two_sequences_share_blocks_and_each_holds_its_reference() -> None:
    pool = BlockPool(4)
    pool.grow([1, 2], 0, 2, 0)
    pool.grow([1, 2], 0, 2, 1)
    assert pool.used == 3
    pool.release([1, 2], 2, 0)
    assert (pool.used, pool.cached) == (3, 0)
    pool.release([1, 2], 2, 1)
    assert (pool.used, pool.cached) == (0, 2)


def test_the_tail_of_the_chain_released_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(5)
    pool.grow([1, 2, 3], 0, 3, 0)
    pool.release([1, 2, 3], 3, 0)
    pool.grow([11, 12], 0, 2, 0)
    pool.release([11, 12], 2, 0)
    pool.grow([], 0, 0, 2)
    assert pool.hit_blocks([1, 2, 3], 3) == 1
    assert pool.hit_blocks([11, 12], 2) == 2
    pool.grow([], 0, 0, 2)
    assert pool.hit_blocks([1], 1) == 0
    assert pool.hit_blocks([11, 12], 2) == 1


def test_using_a_cached_block_again_makes_it_the_last_to_go() -> None:
    pool = BlockPool(3)
    for chain in ([1], [2], [1]):
        pool.grow(chain, 0, 1, 0)
        pool.release(chain, 1, 0)
    pool.grow([], 0, 0, 2)
    assert pool.hit_blocks([1], 1) == 1
    assert pool.hit_blocks([2], 1) == 0


def test_cached_blocks_count_as_free_but_referencing_them_takes_them() -> None:
    pool = BlockPool(4)
    pool.grow([1, 2], 0, 2, 0)
    pool.release([1, 2], 2, 0)
    pool.grow([2], 0, 1, 0)
    assert pool.free == 3
    assert pool.unreferenced([1, 2], 2) == 1


def test_forgetting_drops_cached_blocks_and_keeps_those_in_use() -> None:
    pool = BlockPool(4)
    pool.grow([1], 0, 1, 0)
    pool.release([1], 1, 0)
    pool.grow([2], 0, 1, 0)
    pool.forget()
    assert (pool.cached, pool.used) == (0, 1)
    assert pool.hit_blocks([1], 1) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 2)), max_size=60))
def test_blocks_are_conserved_whatever_comes_and_goes(steps: list[tuple[int, int, int]]) -> None:
    pool = BlockPool(16)
    held: list[tuple[list[int], int, int]] = []
    for family, length, private in steps:
        chain = [family * 100 + index for index in range(length)]
        if pool.unreferenced(chain, length) + private <= pool.free:
            pool.grow(chain, 0, length, private)
            held.append((chain, length, private))
        elif held:
            pool.release(*held.pop(0))
        distinct = {block for chain, length, _ in held for block in chain[:length]}
        assert pool.used == len(distinct) + sum(private for *_, private in held)
        assert pool.used + pool.free == pool.total
        assert pool.used + pool.cached <= pool.total
    for holding in held:
        pool.release(*holding)
    assert (pool.used, pool.free) == (0, 16)
