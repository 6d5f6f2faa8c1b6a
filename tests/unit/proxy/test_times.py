"""Times by model: whatever is asked for, the number of models stays bounded and follows what is served."""

from hypothesis import given
from hypothesis import strategies as st

from poise.proxy.times import MAX_MODELS, OTHER, TimesByModel

names = st.none() | st.sampled_from(["a", "b", "c", "unknown", OTHER, ""]) | st.text(max_size=3)
served_sets = st.sets(st.sampled_from(["a", "b", "c", OTHER]))


@given(steps=st.lists(st.tuples(served_sets, st.lists(names))))
def test_a_model_has_times_of_its_own_while_it_is_served(steps: list[tuple[set[str], list[str | None]]]) -> None:
    times = TimesByModel()
    asked = 0
    for served, requests in steps:
        times.follow(served)
        for model in requests:
            times.of(model).end_to_end_s.observe(1.0)
            asked += 1
        shown = [name for name, _ in times]
        assert set(shown) <= served | {OTHER}
        assert len(set(shown)) == len(shown)
        assert shown[-1] == OTHER
        assert {model for model in requests if model in served} <= set(shown)
        assert sum(one.end_to_end_s.count for _, one in times) <= asked


def test_an_engine_with_thousands_of_adapters_does_not_fill_the_page() -> None:
    times, served = TimesByModel(), [f"adapter-{number}" for number in range(5 * MAX_MODELS)]
    times.follow(served)
    for model in served:
        times.of(model).first_output_s.observe(1.0)
    assert len(list(times)) == MAX_MODELS + 1
    assert sum(one.first_output_s.count for _, one in times) == len(served)
