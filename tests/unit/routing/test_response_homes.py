"""Which replica stored which response: bounded, and forgetting those that nobody asks for."""

from hypothesis import given
from hypothesis import strategies as st

from poise.routing.response_homes import FORGOTTEN_AFTER_S, MAX_ID_CHARACTERS, ResponseHomes


def test_a_response_is_found_until_nobody_has_asked_for_it_for_long() -> None:
    homes = ResponseHomes()
    homes.learn("resp_1", "a", 0.0)
    assert homes.find("resp_2", 0.0) is None
    assert homes.find("resp_1", FORGOTTEN_AFTER_S) == "a"
    assert homes.find("resp_1", 2 * FORGOTTEN_AFTER_S) == "a", "it was asked for in between"
    assert homes.find("resp_1", 4 * FORGOTTEN_AFTER_S) is None
    assert len(homes) == 0


def test_the_latest_replica_counts() -> None:
    homes = ResponseHomes()
    homes.learn("resp_1", "a", 0.0)
    homes.learn("resp_1", "b", 1.0)
    assert homes.find("resp_1", 1.0) == "b"


def test_no_response_has_such_an_id() -> None:
    homes = ResponseHomes()
    homes.learn("", "a", 0.0)
    homes.learn("x" * (MAX_ID_CHARACTERS + 1), "a", 0.0)
    assert len(homes) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8))), st.integers(1, 5))
def test_those_used_last_are_kept(steps: list[tuple[bool, int]], limit: int) -> None:
    homes, used = ResponseHomes(limit), []
    for number, (learns, response) in enumerate(steps):
        name = f"resp_{response}"
        known = name in used
        if learns:
            homes.learn(name, "a", float(number))
        else:
            assert (homes.find(name, float(number)) is not None) is known
        if learns or known:
            used = [*(other for other in used if other != name), name][-limit:]
    assert len(homes) == len(used)
