"""docs/policies.md: every policy, setting, alias and reason is on it, and its example runs."""

import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from poise.core.decision import Send, Wait
from poise.core.request import RequestFacts
from poise.routing.policy import Policy
from poise.routing.registry import ALIASES, DEFAULT_POLICY, POLICIES, make_policy
from poise.wire.facts import COMPLETION_HEAD_BYTES, PREFIX_BLOCK_BYTES, SESSION_HEADERS, USER_HEADERS
from support.fleets import Load, fleet_of

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def policy_from(block: str) -> Policy:
    settings: dict[str, Any] = yaml.safe_load(block)["policy"]
    return make_policy(settings.pop("name"), settings, Random(0))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_a_section_with_its_settings_and_defaults(name: str) -> None:
    text = section(name)
    settings = POLICIES[name].settings
    assert (settings is None) == ("No settings." in text)
    for field in fields(settings()) if settings else ():
        value = getattr(settings(), field.name)  # type: ignore[misc]
        inner = fields(value) if is_dataclass(value) and name == "load_score" else ()
        rows = {f"{field.name}.{one.name}": getattr(value, one.name) for one in inner} or {field.name: value}
        for setting, default in rows.items():
            assert f"| `{setting}` | {'as for' if is_dataclass(default) else default} " in text


@pytest.mark.parametrize("name", POLICIES)
def test_every_reason_is_said(name: str) -> None:
    fleet = fleet_of([Load(kv=0.5)] * 2)
    for request in (RequestFacts(), RequestFacts(session=1)):
        for tried in ((), (0,), (1,)):
            decision = make_policy(name, {}, Random(0)).choose(request, fleet.pool(None), 0.0, tried)
            assert isinstance(decision, Send)
            assert f"(`{decision.reason}`)" in section(name)


def test_the_default_aliases_headers_and_sizes_are_named() -> None:
    assert f"[`{DEFAULT_POLICY}`](#{DEFAULT_POLICY}) (default)" in PAGE
    assert all(f"`{alias}`" in PAGE for alias in ALIASES)
    assert all(f"`{header.decode()}`" in PAGE.lower() for header in SESSION_HEADERS + USER_HEADERS)
    assert f"{PREFIX_BLOCK_BYTES} bytes" in PAGE
    assert f"{COMPLETION_HEAD_BYTES} bytes" in PAGE


def test_the_configured_policy_is_one() -> None:
    policy_from(blocks("yaml")[0])


def test_the_example_of_a_policy_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("python")
    (tmp_path / "my_policies.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    policy = policy_from(blocks("yaml")[1])
    fleet = fleet_of([Load(in_flight=1), Load(), Load()])

    def placed(tokens: int, tried: tuple[int, ...] = ()) -> object:
        decision = policy.choose(RequestFacts(prompt_tokens=tokens), fleet.pool(None), 0.0, tried)
        return (decision.slot, decision.reason) if isinstance(decision, Send) else decision

    assert placed(3999) == (1, "short")
    assert placed(4000) == (2, "long")
    assert placed(4000, (2,)) == (1, "long")
    for replica in fleet:
        replica.available = False
    assert isinstance(placed(1), Wait)
