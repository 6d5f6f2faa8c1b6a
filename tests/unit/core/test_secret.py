"""What a credential shows of itself, and what is not one."""

import pytest

from poise.core.errors import ConfigError
from poise.core.secret import Secret, secret_from


def test_a_secret_is_shown_by_no_usual_way_of_showing_things() -> None:
    secret = Secret("sk-1")
    for shown in (repr(secret), str(secret), f"{secret}", f"{[secret]}", f"{secret!r}"):
        assert "sk-1" not in shown
    assert secret.reveal() == "sk-1"


def test_secrets_are_compared_by_what_they_are() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret("a") != "a"


def test_a_variable_is_read_without_its_line_end() -> None:
    assert secret_from({"KEY": "sk-1\n"}, "KEY", "a key") == Secret("sk-1")


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_variable_that_holds_nothing_is_named(text: str | None) -> None:
    with pytest.raises(ConfigError, match="environment variable KEY, which is to hold the key of a, is not set"):
        secret_from({} if text is None else {"KEY": text}, "KEY", "the key of a")


@pytest.mark.parametrize("text", ["sk-1\r\nx-evil: 1", "two words", "schlüssel", "\x00"])
def test_what_cannot_be_sent_in_a_header_is_refused_unseen(text: str) -> None:
    with pytest.raises(ConfigError, match="environment variable KEY does not hold the key of a") as raised:
        secret_from({"KEY": text}, "KEY", "the key of a")
    assert text not in str(raised.value)
