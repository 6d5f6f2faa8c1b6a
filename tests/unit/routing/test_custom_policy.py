"""A user's own class as policy, and what is said of one that cannot be used."""

from pathlib import Path
from random import Random

import pytest

from poise.core.decision import Send
from poise.core.errors import ConfigError
from poise.routing.registry import make_policy

MODULE = """
from poise.core.decision import Send

class Good:
    def __init__(self, slot: int = 3) -> None:
        self.slot = slot
    def choose(self, request, fleet, now_s, tried):
        return Send(self.slot, "mine")

class AnySettings(Good):
    def __init__(self, **settings):
        super().__init__(settings["slot"])

class WithoutChoose: pass

class Slow(Good):
    async def choose(self, request, fleet, now_s, tried): ...

class TooFew(Good):
    def choose(self, request, fleet): ...

class Needs(Good):
    def __init__(self, depth): ...

class Fails(Good):
    def __init__(self): raise OSError("no luck")

not_a_class = 3
"""


@pytest.fixture(autouse=True)
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_policies.py").write_text(MODULE)
    (tmp_path / "broken_policies.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "slot"),
    [
        ("users_policies:Good", {}, 3),
        ("users_policies:Good", {"slot": 5}, 5),
        ("users_policies:AnySettings", {"slot": 6}, 6),
    ],
)
def test_a_class_is_made_with_its_settings(name: str, settings: dict[str, object], slot: int) -> None:
    policy = make_policy(name, settings, Random(0))
    assert policy.choose(None, None, 0.0, ()) == Send(slot, "mine")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("no_such_module_at_all:Good", {}, "cannot be imported: ModuleNotFoundError"),
        ("broken_policies:Good", {}, "cannot be imported: ZeroDivisionError"),
        (":Good", {}, "cannot be imported"),
        ("users_policies:", {}, "does not exist"),
        ("users_policies:Goood", {}, "classes in users_policies: Send, Good"),
        ("users_policies:not_a_class", {}, "is not a class but a int"),
        ("users_policies:WithoutChoose", {}, "has no method choose"),
        ("users_policies:Slow", {}, "async"),
        ("users_policies:TooFew", {}, "too many positional arguments"),
        ("users_policies:Good", {"solt": 1}, "did you mean 'slot'?"),
        ("users_policies:Needs", {}, "missing 1 required positional argument: 'depth'"),
        ("users_policies:Fails", {}, "cannot be made: OSError: no luck"),
        ("users_policies:AnySettings", {}, "cannot be made: KeyError"),
    ],
)
def test_what_cannot_be_used_is_said(name: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_policy(name, settings, Random(0))
    assert str(caught.value).startswith(f"policy {name} ")
    assert said in str(caught.value)
    assert caught.value.hint
