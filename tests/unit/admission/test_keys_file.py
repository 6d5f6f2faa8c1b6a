"""The keys file in all its forms; what is wrong in it is said without ever showing a key."""

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.admission.api_key import ApiKey
from poise.admission.keys_file import FIELDS, parse_keys
from poise.core.errors import ConfigError

SECRET = "sk-0123456789abcdef"
DOCUMENTED = {
    "name": "team-a", "key": SECRET, "models": ["*"], "requests_per_s": None, "tokens_per_min": None,
    "max_concurrency": None, "priority": 0,
}  # fmt: skip


def parse(*entries: Any) -> Any:
    return parse_keys(json.dumps({"keys": entries}))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"keys": [DOCUMENTED]}),
        f"keys:\n  - name: team-a\n    key: {SECRET}\n",
        f"keys: [{{name: team-a, key: 'sha256:{sha256(SECRET.encode()).hexdigest()}'}}]",
        f"keys: [{{name: team-a, key: 'sha256:{sha256(SECRET.encode()).hexdigest().upper()}'}}]",
    ],
)
def test_plain_and_hashed_keys_in_json_and_yaml(text: str) -> None:
    keys = parse_keys(text)
    assert len(keys) == 1
    assert keys.authenticate(b"Bearer " + SECRET.encode()) == ApiKey("team-a")


def test_each_key_has_its_name() -> None:
    keys = parse({"name": "a", "key": "one"}, {"name": "b", "key": "two"})
    assert [keys.authenticate(key) for key in (b"one", b"two", b"three")] == [ApiKey("a"), ApiKey("b"), None]


def test_every_documented_field_is_known() -> None:
    assert DOCUMENTED.keys() == {"name", "key", *FIELDS}


def test_what_a_key_may_do() -> None:
    rights = {
        "models": ["m", "n"], "requests_per_s": 2.5, "tokens_per_min": 9000, "max_concurrency": 4, "priority": -3,
    }  # fmt: skip
    keys = parse({"name": "a", "key": SECRET, **rights})
    assert list(keys) == [ApiKey("a", ("m", "n"), 2.5, 9000, 4, -3)]


@pytest.mark.parametrize("field", FIELDS)
def test_null_is_as_if_the_field_were_left_out(field: str) -> None:
    assert list(parse({"name": "a", "key": SECRET, field: None})) == [ApiKey("a")]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        *(({"name": "a", "key": SECRET, field: wrong}, f"key 'a' has {field} that cannot be read")
          for field in FIELDS for wrong in (SECRET, True, float("nan"), float("inf"), [], {}, [SECRET, 1], [""])),
        *(({"name": "a", "key": SECRET, field: wrong}, f"key 'a' has {field} that cannot be read")
          for field in FIELDS[1:4] for wrong in (0, -1)),
        *(({"name": "a", "key": SECRET, field: 1.5}, f"key 'a' has {field} that cannot be read")
          for field in FIELDS[2:]),
        *(({"name": "a", "key": SECRET, "priority": wrong}, "key 'a' has priority that cannot be read")
          for wrong in (-101, 101)),
        ({"name": "a", "key": SECRET, "rate": 1}, "key 'a' has an unknown field"),
        ({"name": "a", "key": SECRET, SECRET: None}, "key 'a' has an unknown field"),
        ({"name": "a", "key": 12345}, "key 'a' is not usable as a key"),
        ({"name": "a", "key": None}, "key 'a' is not usable as a key"),
        ({"name": "a"}, "key 'a' is not usable as a key"),
        ({"name": "a", "key": ""}, "key 'a' is not usable as a key"),
        ({"name": "a", "key": SECRET + " x"}, "key 'a' is not usable as a key"),
        ({"name": "a", "key": SECRET + "é"}, "key 'a' is not usable as a key"),
        ({"name": "a", "key": "sha256:" + SECRET}, "key 'a' is not a SHA-256 digest"),
        ({"key": SECRET}, "key 1 has no usable name"),
        ({"name": "", "key": SECRET}, "key 1 has no usable name"),
        ({"name": 7, "key": SECRET}, "key 1 has no usable name"),
        ({"name": "two words", "key": SECRET}, "key 1 has no usable name"),
        (SECRET, "key 1 is not a mapping"),
    ],
)  # fmt: skip
def test_wrong_entries_are_said_without_the_key(entry: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(entry)
    assert said in str(caught.value)
    assert caught.value.hint
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"name": "a", "key": "x"}, {"name": "a", "key": "y"}], "two keys are named 'a'"),
        ([{"name": "a", "key": SECRET}, {"name": "b", "key": SECRET}], "keys 'a' and 'b' are the same"),
    ],
)
def test_names_and_keys_are_given_once(entries: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(*entries)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", SECRET, "{}", '{"keys": []}', '{"keys": {}}', '{"keys": null}',
     json.dumps({"keys": [DOCUMENTED], "limits": {}}), f"keys: [{{name: a, key: {SECRET}", f"key: '{SECRET}\n",
     f"keys:\n- name: a\n   key: {SECRET}", f"\t{SECRET}", f"{SECRET}\x00",
     f"keys: [{{name: a, key: {SECRET}, priority: 2024-13-45}}]", f"keys: {20_000 * '['}{SECRET}"],
)  # fmt: skip
def test_other_files_are_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_keys(text)
    assert caught.value.hint
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@given(text=st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_keys(text)
    except ConfigError:
        return
    pytest.fail("a random text held keys")
