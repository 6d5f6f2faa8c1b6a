"""Keys are recognised in all their spellings, and nothing else is; the ring holds no key."""

import gc
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.admission.api_key import ApiKey
from poise.admission.keys import REMEMBERED_CREDENTIALS, KeyRing

KEY = b"sk-0123456789abcdef"
OTHER = b"sk-fedcba9876543210"


def ring(**names: bytes) -> KeyRing:
    return KeyRing(
        {sha256(key).digest(): ApiKey(name) for name, key in (names or {"team": KEY, "other": OTHER}).items()}
    )


@pytest.mark.parametrize(
    "credential",
    [KEY, b"Bearer " + KEY, b"bearer " + KEY, b"BEARER   " + KEY, b" Bearer " + KEY + b" ", b" " + KEY + b" "],
)
def test_a_key_is_known_as_bearer_in_any_case_and_by_itself(credential: bytes) -> None:
    keys = ring()
    assert [keys.authenticate(credential) for _ in range(3)] == [ApiKey("team")] * 3
    assert keys.authenticate(b"Bearer " + OTHER) == ApiKey("other")


@pytest.mark.parametrize(
    "credential",
    [None, b"", b" ", b"Bearer", b"Bearer ", b"Basic " + KEY, b"Bearer Bearer " + KEY, b"Bearer" + KEY,
     b"Bearer " + KEY + b" " + KEY, KEY.upper(), KEY[:-1], KEY + b"0", sha256(KEY).digest(),
     b"sha256:" + sha256(KEY).hexdigest().encode()],
)  # fmt: skip
def test_anything_else_is_not_known(credential: bytes | None) -> None:
    keys = ring()
    keys.authenticate(b"Bearer " + KEY)
    assert [keys.authenticate(credential) for _ in range(2)] == [None, None]


@given(credential=st.binary(max_size=64))
def test_no_bytes_raise_or_pass(credential: bytes) -> None:
    keys = ring()
    assert keys.authenticate(credential) is None
    assert keys.authenticate(b"Bearer " + credential) is None


def test_guesses_are_not_remembered_and_spellings_of_a_key_only_up_to_a_bound() -> None:
    keys = ring()
    for count in range(3 * REMEMBERED_CREDENTIALS):
        keys.authenticate(b"guess-%d" % count)
    assert len(keys._remembered) == 0
    for spaces in range(1, REMEMBERED_CREDENTIALS + 10):
        assert keys.authenticate(b"Bearer" + b" " * spaces + KEY) == ApiKey("team")
    assert len(keys._remembered) <= REMEMBERED_CREDENTIALS


def test_no_key_is_kept() -> None:
    keys = ring()
    keys.authenticate(b"Bearer " + KEY)
    held = [keys]
    for kept in held:
        assert not (isinstance(kept, bytes) and KEY in kept)
        held += [inner for inner in gc.get_referents(kept) if isinstance(inner, (dict, bytes, str))]
    assert len(held) > 4
    assert len(keys) == 2


def test_a_ring_becomes_another_and_forgets_what_it_recognised() -> None:
    keys = ring()
    assert keys.authenticate(KEY) == ApiKey("team")
    keys.become(ring(renamed=KEY))
    assert keys.authenticate(KEY) == ApiKey("renamed")
    assert keys.authenticate(OTHER) is None
